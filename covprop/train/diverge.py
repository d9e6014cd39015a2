"""Training that diverged: how it is noticed and what is reported."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from covprop.errors import CovpropError


def finite(module: nn.Module) -> bool:
    """Whether all parameters are finite."""
    norms = [p.detach().norm() for p in module.parameters()]
    return bool(torch.stack(norms).isfinite().all())


def diverged(out: Path, epoch: int, step: int, loss: int | float | None) -> CovpropError:
    """What to raise after `step` of `epoch`, counted from 0; no `loss` if weights show it."""
    what = "weights are no longer numbers" if loss is None else f"mean loss {loss:.3g}"
    kept = "its last good checkpoint" if (out / "state.pt").exists() else "no checkpoint yet"
    return CovpropError(
        f"Training diverged in epoch {epoch + 1} at step {step} ({what}); "
        f"{out} holds {kept}: lower train.lr or set train.clip_norm, and train into "
        "another --out or with --restart."
    )
