"""Every example runs as a user would run it, and says what it promises."""

import functools
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@functools.cache
def run(path: Path) -> str:
    """The output of an example started from an empty folder, warnings being errors."""
    command = [sys.executable, "-W", "error", str(path)]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
        left = list(Path(folder).iterdir())
    assert done.returncode == 0, done.stderr
    assert not left, "an example leaves no files behind"
    return done.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example_runs(path: Path) -> None:
    assert run(path).strip()


def test_own_model_is_short_and_prints_three_estimates_that_agree() -> None:
    path = next(path for path in EXAMPLES if path.name == "own_model.py")
    assert len(path.read_text().splitlines()) < 40
    rows = re.findall(r"^ +(shared|linearized|sampled) +([\d. ]+)$", run(path), re.M)
    radii = {name: [float(number) for number in row.split()] for name, row in rows}
    assert list(radii) == ["shared", "linearized", "sampled"]
    assert all(len(row) == 4 for row in radii.values())
    # Here the shared covariance overstates the noise, by a small factor.
    for closed_form, monte_carlo in zip(radii["shared"], radii["sampled"], strict=True):
        assert 0.25 * monte_carlo < closed_form < monte_carlo
