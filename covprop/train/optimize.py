"""The optimizers, and the running average of the weights.

What changes from step to step, the share 1 − d of the average and on a GPU the learning rate, is a
tensor, so that a recorded step reads its current value.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from covprop.train.muon import Muon
from covprop.train.options import TrainOptions


def optimizer(model: nn.Module, options: TrainOptions) -> Optimizer:
    """SGD, AdamW or Muon over all trainable parameters of `model`.

    With `decay_all = false`, parameters of at most one dimension (biases, the scales and shifts
    of norms) are not decayed, nor with Muon are those of two, which take no orthogonal steps.
    """
    trainable = [p for p in model.parameters() if p.requires_grad]
    groups = [{"params": trainable, "weight_decay": options.weight_decay}]
    if not options.decay_all:
        most = 2 if options.optimizer == "muon" else 1
        groups[0]["params"] = [p for p in trainable if p.ndim > most]
        groups.append({"params": [p for p in trainable if p.ndim <= most], "weight_decay": 0.0})
    fused = all(p.is_cuda for p in trainable)
    lr = torch.tensor(options.lr, device=trainable[0].device) if fused else options.lr
    if options.optimizer == "muon":
        return Muon(groups, lr, options.momentum, nesterov=options.nesterov)
    if options.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=lr, betas=options.betas, fused=fused, capturable=fused)
    return torch.optim.SGD(
        groups, lr=lr, momentum=options.momentum, nesterov=options.nesterov, fused=fused
    )


def set_lr(optimizer: Optimizer, lr: float) -> None:
    """Let the next step have the learning rate `lr`."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


HOW = ("lr", "fused", "capturable")
"""Keys of a group that depend on the device rather than on the run."""


def state_of(optimizer: Optimizer) -> dict[str, Any]:
    """Its state for a checkpoint that can be continued on any device."""
    state = optimizer.state_dict()
    groups = [group | {"lr": float(group["lr"])} for group in state["param_groups"]]
    return state | {"param_groups": groups}


def restore(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Load `state_of` another optimizer, but keep this one's `HOW`."""
    own = [{k: group[k] for k in HOW if k in group} for group in optimizer.param_groups]
    groups = [a | b for a, b in zip(state["param_groups"], own, strict=True)]
    optimizer.load_state_dict(state | {"param_groups": groups})


class Average:
    """Exponential running average of a model's weights: a ← d·a + (1 − d)·w.

    The decay d of step n is at most (1 + n)/(10 + n), so that the first, random weights are soon
    forgotten. Counters (`num_batches_tracked`) are copied.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        self.decay = decay
        self.steps = 0
        self.share = torch.zeros((), device=next(model.parameters()).device)

    def advance(self) -> None:
        """Count one more step, which sets the share 1 − d."""
        self.steps += 1
        self.share.fill_(1 - min(self.decay, (1 + self.steps) / (10 + self.steps)))

    @torch.no_grad()
    def mix(self, model: nn.Module) -> None:
        """Add the weights with the share that `advance` set, all at once, to save launches."""
        states = (net.state_dict(keep_vars=True).values() for net in (self.model, model))
        # By identity: a tensor under two names (tied weights) is taken in once.
        pairs = {id(mine): (mine, theirs) for mine, theirs in zip(*states, strict=True)}.values()
        counters = [(a, b) for a, b in pairs if not a.is_floating_point()]
        floats = [(a, b) for a, b in pairs if a.is_floating_point()]
        if counters:
            torch._foreach_copy_([a for a, _ in counters], [b for _, b in counters])
        averages, weights = ([pair[i] for pair in floats] for i in (0, 1))
        change = torch._foreach_sub(weights, averages)
        torch._foreach_mul_(change, self.share)
        torch._foreach_add_(averages, change)
