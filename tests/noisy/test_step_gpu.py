"""Noisy methods on a GPU: every step is recorded, and does what the unrecorded one does."""

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from covprop.run import Run
from covprop.train import checkpoint, resolve, train

pytestmark = pytest.mark.gpu

CASES: dict[str, dict[str, Any]] = {
    "plain": {"name": "plain"},
    "bootstrap": {"name": "bootstrap", "kind": "soft"},
    "smodel": {"name": "smodel", "pretrain": 1},
    "decoupling": {"name": "decoupling"},
    "mentornet": {"name": "mentornet", "ramp": 2},
    "coteaching": {"name": "coteaching", "ramp": 2},
    "truncated": {"name": "truncated", "from_epoch": 1, "refresh": 1},
    "radius": {"name": "radius", "weight": 0.5, "from_epoch": 1, "drop": 0.3},
    "label": {
        **{"name": "radius", "weight": 0.0, "from_epoch": 1, "drop": 0.5, "per_class": True},
        **{"of": "label", "end": "smallest"},
    },
    "layer": {
        **{"name": "radius", "weight": 0.0, "from_epoch": 2, "drop": 0.5, "per_class": True},
        **{"of": "label", "end": "smallest", "layer": 1},
    },
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own parts
@pytest.mark.parametrize(
    ("case", "compiled"),
    [
        *((case, False) for case in CASES),
        *((c, True) for c in ("smodel", "coteaching", "label", "layer")),
    ],
)
def test_recorded_steps_are_the_same_run(tmp_path: Path, case: str, compiled: bool) -> None:
    """Sums on a GPU may be taken in another order, so equal up to rounding is what is promised."""
    said = io.StringIO()
    for fast in (False, True):
        recipe = resolve(
            {
                "data": {"name": "digits"},
                "labels": {"name": "pair", "rate": 0.45},
                "model": {"name": "lenet", "width": 4},
                "noise": {"sigma": 0.25},
                "method": CASES[case],
                "train": {"epochs": 4, "batch_size": 100, "optimizer": "adamw", "lr": 0.001}
                | {"schedule": "linear", "decay_from": 2, "late_beta1": 0.1}
                | {"device": "cuda", "fast": fast, "compile": fast and compiled},
            }
        )
        train(recipe, tmp_path / str(fast), console=Console(file=said, width=200))
    assert "cannot be recorded" not in said.getvalue()
    slow, quick = (
        checkpoint.load_state(tmp_path / str(fast) / "state.pt") for fast in (False, True)
    )
    for mine, theirs in zip(
        Run(tmp_path / "False").metrics(), Run(tmp_path / "True").metrics(), strict=True
    ):
        assert theirs["loss"] == pytest.approx(mine["loss"], rel=0.02)
        assert theirs["kept"] == pytest.approx(mine["kept"], abs=0.02)
    assert torch.equal(slow["memory"]["seen"], quick["memory"]["seen"])
    gap = (slow["memory"]["probability"] - quick["memory"]["probability"]).abs().mean()
    assert float(gap) < 0.01
