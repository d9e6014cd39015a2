"""The loop on a GPU, as the shipped recipes use it: bf16, channels-last, and compiled."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from covprop.run import Run
from covprop.train import Recipe, resolve, train

InParts = Callable[..., None]

pytestmark = [
    pytest.mark.gpu,
    # The compiler's own parts warn: about what they use, and about what they look at.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
]


def make(
    folder: Path, method: dict[str, Any], norm: str, weighting: str = "none", **train: Any
) -> Recipe:
    """Two classes that differ in brightness, so that there is something to learn."""
    random = np.random.default_rng(0)
    labels = np.arange(512) % 2
    images = random.integers(0, 128, (512, 32, 32, 3)) + 100 * labels[:, None, None, None]
    np.savez(folder / "set.npz", images=images.astype(np.uint8), labels=labels)
    options = {"epochs": 3, "batch_size": 64, "lr": 0.01, "precision": "bf16", "device": "cuda"}
    return resolve(
        {
            "data": {"name": str(folder / "set.npz"), "augment": "crop-flip"},
            "model": {"name": "preact_resnet18", "width": 16, "norm": norm},
            "noise": {"sigma": 0.25},
            "method": method,
            "weighting": {"name": weighting},
            "train": options | {"channels_last": True} | train,
        }
    )


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(
    ("method", "norm"),
    [
        ({"name": "gaussian"}, "batch"),
        ({"name": "macer", "samples": 4}, "batch"),
        ({"name": "consistency"}, "batch"),
        ({"name": "smoothadv", "steps": 2}, "batch"),
        ({"name": "radius", "estimator": "shared", "weight": 0.5}, "none"),
        ({"name": "radius", "estimator": "shared", "weight": 0.5}, "batch"),
        ({"name": "radius", "estimator": "shared", "preset": "reference", "weight": 0.5}, "none"),
        ({"name": "radius", "estimator": "calibrated", "mean": "noisy", "weight": 0.1}, "none"),
        ({"name": "radius", "estimator": "linearized", "mean": "sample", "weight": 0.1}, "none"),
    ],
    ids=[
        "gaussian",
        "macer",
        "consistency",
        "smoothadv",
        "radius",
        "radius-norm",
        "reference",
        "calibrated",
        "lin",
    ],
)
def test_every_method_trains(
    tmp_path: Path, method: dict[str, Any], norm: str, compiled: bool
) -> None:
    train(make(tmp_path, method, norm, compile=compiled, ema=0.9), tmp_path / "run")
    rows = Run(tmp_path / "run").metrics()
    assert len(rows) == 3
    assert all(np.isfinite(row["loss"]) for row in rows)
    model = Run(tmp_path / "run").load_model("cuda")
    assert model(torch.rand(2, 3, 32, 32, device="cuda")).isfinite().all()


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("weighting", ["radius", "probability"])
def test_weighted(tmp_path: Path, weighting: str, compiled: bool) -> None:
    recipe = make(tmp_path, {"name": "consistency"}, "batch", weighting, compile=compiled)
    said = io.StringIO()
    train(recipe, tmp_path / "run", console=Console(file=said, width=200))
    assert "Steps are recorded as a CUDA graph and " in said.getvalue()
    assert "cannot be recorded" not in said.getvalue()
    rows = Run(tmp_path / "run").metrics()
    assert all(np.isfinite(row["loss"]) for row in rows)
    assert all(row["estimated_radius"] is not None for row in rows)


def test_stopped_and_continued(tmp_path: Path, train_in_parts: InParts) -> None:
    """Sums on a GPU may be taken in another order, so equal up to rounding is what is promised."""
    recipe = make(tmp_path, {"name": "gaussian"}, "batch", precision="fp32", lr=0.001)
    train(recipe, tmp_path / "whole")
    train_in_parts(recipe, tmp_path / "parts", lambda trainer: trainer.epoch == 1)
    one, two = (Run(tmp_path / name).load_model().state_dict() for name in ("whole", "parts"))
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-3, atol=1e-4)
