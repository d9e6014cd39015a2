"""A run on digits that takes a fraction of a second."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from covprop.train import Interrupted, Recipe, resolve, train
from covprop.train.loop import Trainer
from covprop.train.stop import StopRequest

Make = Callable[..., Recipe]
InParts = Callable[[Recipe, Path, Callable[[Trainer], bool]], None]


@pytest.fixture
def train_in_parts(monkeypatch: pytest.MonkeyPatch) -> InParts:
    """`train_in_parts(recipe, out, when)` trains, is asked to stop `when` says so, and goes on."""
    report = Trainer._report

    def run(recipe: Recipe, out: Path, when: Callable[[Trainer], bool]) -> None:
        def ask(self: Trainer, stop: StopRequest) -> None:
            stop.signum = 2 * when(self)
            report(self, stop)

        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "_report", ask)
            with pytest.raises(Interrupted):
                train(recipe, out)
        train(recipe, out)

    return run


@pytest.fixture
def tiny() -> Make:
    """`tiny(method=…, weighting=…, model=…, **train)` is a checked recipe."""

    def make(
        method: Any = "gaussian", weighting: Any = None, model: Any = None, **train: Any
    ) -> Recipe:
        raw = {
            "data": {"name": "digits"},
            "model": model or {"name": "lenet", "width": 2},
            "noise": {"sigma": 0.25},
            "method": {"name": method} if isinstance(method, str) else method,
            "train": {"epochs": 2, "batch_size": 200, "optimizer": "adamw", "lr": 0.01}
            | {"schedule": "cosine", "device": "cpu"}
            | train,
        }
        return resolve(raw | ({"weighting": weighting} if weighting else {}))

    return make


@pytest.fixture
def sampled(tiny: Make, tmp_path: Path) -> Recipe:
    """Weighting by sampling on a network that has learned enough after one epoch to drop images."""
    file = tmp_path / "linear.py"
    file.write_text(
        "from torch import nn\n"
        "def build(num_classes, image_shape):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(),\n"
        "                         nn.Linear(32, num_classes))\n"
    )
    weighting = {"name": "radius", "by": "sampling", "from_epoch": 1}
    return tiny(weighting=weighting, model={"name": f"{file}:build"}, epochs=3, lr=0.03)
