"""Run by `make wheel` in an environment that holds the built wheel and nothing of the sources.

`python -I` keeps the working folder and the user's settings out of the way, so what is imported
here is what a user gets who installs the package.
"""

import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import torch
from torch import nn

import covprop
from covprop.train.recipe import shipped


def command_line(*words: str, folder: Path) -> str:
    """What `covprop WORDS` prints, run in `folder`."""
    command = [sys.executable, "-I", "-m", "covprop", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        sys.exit(f"covprop {' '.join(words)} exited with {done.returncode}:\n{done.stderr}")
    return done.stdout


def check_library() -> None:
    """The package is the installed one, complete, and propagates."""
    installed = Path(sysconfig.get_paths()["purelib"]).resolve()
    found = Path(covprop.__file__).resolve()
    assert found.is_relative_to(installed), f"covprop comes from {found}, not from {installed}"
    assert (found.parent / "py.typed").is_file(), "py.typed is missing: users get no types"
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    out = covprop.Propagator(model, sigma=0.25, input_shape=(1, 8, 8))(torch.rand(2, 1, 8, 8))
    radius = covprop.estimated_radius(out, sigma=0.25)
    assert radius.shape == (2,), radius
    assert radius.isfinite().all(), radius


def check_command_line(folder: Path) -> None:
    """Help, lists, and one epoch of training, certified and reported, on embedded data."""
    assert "train" in command_line("--help", folder=folder)
    assert "lenet" in command_line("list", "models", folder=folder)
    recipes = shipped()
    assert "digits/radius-0.25" in recipes, f"the shipped recipes are {sorted(recipes)}"
    assert "digits/radius-0.25" in command_line("list", "recipes", folder=folder)
    options = ("--set", "train.epochs=1", "--set", "train.device=cpu", "--out", "run")
    command_line("train", "digits/radius-0.25", *options, folder=folder)
    for name in ("config.toml", "metrics.jsonl", "model.safetensors"):
        assert (folder / "run" / name).is_file(), f"training left no {name}"
    command_line("certify", "run", "--n", "200", "--max", "3", "--device", "cpu", folder=folder)
    log = (folder / "run" / "certify_sigma_0.25.tsv").read_text().splitlines()
    assert len(log) == 4, log
    command_line("report", "run", "--html", "report.html", folder=folder)
    assert "certified" in (folder / "report.html").read_text().lower()


if __name__ == "__main__":
    check_library()
    with tempfile.TemporaryDirectory() as temporary:
        check_command_line(Path(temporary))
    print(f"covprop {covprop.__version__} from the wheel: library and command line work")
