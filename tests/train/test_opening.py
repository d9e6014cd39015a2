"""What a run says before its first step."""

import dataclasses
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
import torch
from nets import own_net
from rich.console import Console
from torch import nn

from covprop import data
from covprop.train import Recipe, loop, train
from covprop.train.loop import Trainer
from covprop.train.opening import drowned, opening, summary
from covprop.train.options import NoiseOptions

Make = Callable[..., Recipe]
CPU = torch.device("cpu")


def said(recipe: Recipe, out: Path) -> list[str]:
    """The lines that a training prints."""
    text = StringIO()
    train(recipe, out, console=Console(file=text, width=200))
    return text.getvalue().splitlines()


def test_a_run_begins_with_what_is_trained(tmp_path: Path, tiny: Make) -> None:
    first, *rest = said(tiny(), tmp_path)
    model = torch.load(tmp_path / "state.pt", weights_only=True)["model"]
    learned = sum(value.numel() for key, value in model.items() if not key.startswith("0."))
    assert first == (
        f"gaussian: lenet of {learned:,} parameters, 1,437 training images, 2 epochs of 7 steps, "
        "on cpu"
    )
    assert [line.split(":")[0] for line in rest] == ["epoch 1", "epoch 2"]  # short: no more
    (again,) = said(tiny(), tmp_path)
    assert "already trained" in again


def test_an_own_model_goes_by_its_file(tmp_path: Path, tiny: Make) -> None:
    recipe = tiny(model={"name": own_net(tmp_path, "nn.Linear(1, 1)")}, epochs=1)
    text = summary(recipe, nn.Linear(2, 3), 5, 1, CPU)
    assert text.startswith("gaussian: net.py:build of 9 parameters, 5 training images, 1 epoch of")


def test_what_never_begins_is_said_after_it(tiny: Make) -> None:
    recipe = tiny({"name": "consistency", "from_epoch": 2})
    first, second = opening(recipe, nn.Linear(2, 3), 5, 1, CPU)
    assert first.startswith("consistency: lenet")
    assert "never begins" in second


@pytest.mark.parametrize("by", ["loss", "sampling"])
def test_weights_that_begin_too_early_are_told_once(tmp_path: Path, tiny: Make, by: str) -> None:
    recipe = tiny(weighting={"name": "radius", "by": by, "from_epoch": 1}, epochs=3)
    lines = said(recipe, tmp_path)
    (place,) = (n for n, line in enumerate(lines) if line.startswith("weights begin with epoch 2"))
    assert [line.split(":")[0] for line in (lines[place - 1], lines[place + 1])] == [
        "epoch 1", "epoch 2"
    ]  # fmt: skip


def test_noise_on_the_scale_of_bytes_is_said_once(tmp_path: Path, tiny: Make) -> None:
    recipe = dataclasses.replace(tiny(epochs=1), noise=NoiseOptions(sigma=64.0))
    (line,) = (line for line in said(recipe, tmp_path) if "drown" in line)
    assert line.startswith("noise.sigma is on the [0, 1] pixel scale: 64 would drown")
    assert "64/255 is 0.251" in line
    assert drowned(2.0) == []


@pytest.mark.parametrize(
    ("checkpoint", "expected"),
    [
        (True, "at epoch 2, step 0, its last checkpoint; 1 epoch is trained again"),
        (False, "from the beginning, for want of a checkpoint; 2 epochs are trained again"),
    ],
)
def test_a_killed_run_says_what_is_trained_again(
    tmp_path: Path, tiny: Make, monkeypatch: pytest.MonkeyPatch, checkpoint: bool, expected: str
) -> None:
    step = Trainer._train_step

    def killed(self: Trainer, batch: data.Batch) -> None:
        first = checkpoint and self.epoch == 0  # as if that epoch had taken ten seconds
        monkeypatch.setattr(loop, "EPOCH_SECONDS", 0.0 if first else 10.0)
        if self.epoch == 2:
            raise KeyError
        step(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_train_step", killed)
        with pytest.raises(KeyError):
            train(tiny(epochs=3), tmp_path)
    (line,) = (line for line in said(tiny(epochs=3), tmp_path) if line.startswith("continuing"))
    assert line == f"continuing {tmp_path} {expected}"
