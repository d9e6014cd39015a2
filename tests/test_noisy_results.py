"""docs/noisy.md says what the files under results/noisy say, and their recipes can be run."""

import re
from pathlib import Path

import numpy as np
import pytest
from scripts import benchmark

from covprop.train import load

page = benchmark("noisy_page")
ROOT = Path(__file__).parents[1]
NOISY = ROOT / "results/noisy"
CIFAR10, FASHION = NOISY / "cifar10-pair-0.45-15-epochs", NOISY / "fashion-mnist-pair-0.45"
NAMES = {
    "`bootstrap`, hard": "bootstrap-hard",
    "`bootstrap`, soft": "bootstrap-soft",
    "`radius`, smallest 10 %": "radius-smallest",
    "`radius`, largest 10 % (the text)": "radius-largest",
}


def measured(folder: Path) -> dict[str, list[str]]:
    """Method -> accuracy, with its spread over the seeds if there are several; precision."""
    found = {}
    for name, group in page.grouped(page.read(folder)).items():
        accuracy = np.array([entry.summary["test_accuracy_mean"] for entry in group])
        spread = f" ± {accuracy.std(ddof=1):.3f}" if len(group) > 1 else ""
        precision = np.mean([entry.summary["label_precision"] for entry in group])
        found[name] = [f"{accuracy.mean():.3f}{spread}", f"{precision:.3f}"]
    return found


def test_the_table_is_that_of_the_files() -> None:
    text = (ROOT / "docs/noisy.md").read_text(encoding="utf-8")
    table = text[text.index("| method | CIFAR-10, 15 epochs") :].split("\n\n")[0]
    cifar10, fashion = measured(CIFAR10), measured(FASHION)
    seconds, published = page.read_timing(CIFAR10 / "timing.tsv"), page.PUBLISHED["cifar10"]
    assert seconds is not None
    seen = set()
    for line in table.splitlines()[2:]:
        said, *cells = [cell.strip().replace("**", "") for cell in line.strip("|").split("|")]
        name = NAMES.get(said) or re.findall("^`([^`]+)`", said)[0]
        paper = f"{published[name]:.3f}" if name in published else ""
        expected = [*cifar10[name], f"{seconds[name]:.2f}", paper, *fashion.get(name, ["", ""])]
        assert cells == expected, name
        seen.add(name)
    assert seen == set(cifar10)


@pytest.mark.parametrize("folder", sorted(path.parent for path in NOISY.glob("*/*/config.toml")))
def test_a_run_s_config_is_still_a_recipe(folder: Path) -> None:
    assert load(str(folder / "config.toml")).labels is not None
