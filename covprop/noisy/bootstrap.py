"""Bootstrapping (Reed et al. 2015): the target is partly the network's own opinion."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covprop.data import Batch
from covprop.noisy.base import NoisyLosses, NoisyMethod, Task
from covprop.options import Fraction

BETA = {"hard": 0.8, "soft": 0.95}


class Bootstrap(NoisyMethod):
    """−Σ_j (β t_j + (1 − β) q_j) log p_j, with q the network's own guess.

    Args:
        kind: q is the one-hot argmax of p ("hard"), or p itself ("soft").
        beta: β; 0.8 for hard and 0.95 for soft when not given.
    """

    def __init__(
        self, task: Task, kind: Literal["hard", "soft"] = "hard", beta: Fraction | None = None
    ) -> None:
        super().__init__()
        self.kind = kind
        self.beta = BETA[kind] if beta is None else beta

    def forward(
        self, model: nn.Module, batch: Batch, epoch: int, generator: torch.Generator
    ) -> NoisyLosses:
        logits = model(batch.x).float()
        losses = bootstrap_loss(logits, batch.y, self.beta, self.kind)
        return NoisyLosses(losses, logits.detach(), torch.ones_like(batch.y, dtype=torch.bool))


def bootstrap_loss(logits: Tensor, y: Tensor, beta: float, kind: str) -> Tensor:
    """The loss of each image, [b]; in the soft kind the gradient flows through q as well."""
    log_p = logits.log_softmax(1)
    label = F.nll_loss(log_p, y, reduction="none")
    if kind == "hard":
        own = F.nll_loss(log_p, logits.argmax(1), reduction="none")
    else:
        own = -(log_p.exp() * log_p).sum(1)
    return beta * label + (1 - beta) * own
