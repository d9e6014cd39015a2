"""The optimizers, and the running average of the weights."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.optim import Optimizer

from covprop.train.options import TrainOptions


def optimizer(model: nn.Module, options: TrainOptions) -> Optimizer:
    """SGD or AdamW over all trainable parameters of `model`.

    With `decay_all = false`, parameters of at most one dimension (biases, the scales and shifts
    of norms) are not decayed.
    """
    trainable = [p for p in model.parameters() if p.requires_grad]
    groups = [{"params": trainable, "weight_decay": options.weight_decay}]
    if not options.decay_all:
        groups[0]["params"] = [p for p in trainable if p.ndim > 1]
        groups.append({"params": [p for p in trainable if p.ndim <= 1], "weight_decay": 0.0})
    fused = all(p.is_cuda for p in trainable)
    if options.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=options.lr, betas=options.betas, fused=fused)
    return torch.optim.SGD(
        groups, lr=options.lr, momentum=options.momentum, nesterov=options.nesterov, fused=fused
    )


class Average:
    """Exponential running average of a model's weights: a ← d·a + (1 − d)·w.

    The decay d of step n is at most (1 + n)/(10 + n), so that the first, random weights are soon
    forgotten. Counters (`num_batches_tracked`) are copied.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        self.decay = decay
        self.steps = 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Take the weights after one more optimizer step into the average."""
        self.steps += 1
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        for mine, theirs in zip(
            self.model.state_dict().values(), model.state_dict().values(), strict=True
        ):
            if mine.is_floating_point():
                mine.lerp_(theirs, 1 - decay)
            else:
                mine.copy_(theirs)
