"""Muon (Jordan et al. 2024): SGD whose steps for convolutions are made orthogonal.

A filter bank W [out, in, ...], seen as a matrix, moves by the nearest orthogonal matrix to its
momentum instead of the momentum itself, so that all its directions are learnt at one pace.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the published quintic p(s) = a s + b s³ + c s⁵, which takes singular values in (0, 1] to about
1 (0.7 to 1.2) in five rounds."""
ROUNDS = 5


def orthogonal(matrices: Tensor) -> Tensor:
    """About U Vᵀ for each matrix U S Vᵀ of [k, m, n], by five rounds of Newton–Schulz.

    Singular values end between 0.7 and 1.2 rather than at 1, which serves as well and is cheaper.
    On a GPU it is computed in bfloat16.

    Example:
        >>> values = torch.linalg.svdvals(orthogonal(torch.randn(2, 4, 8)))
        >>> bool((values > 0.6).all() and (values < 1.3).all())
        True
    """
    a, b, c = COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x.bfloat16() if x.is_cuda else x
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7)
    for _ in range(ROUNDS):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype)


class Muon(Optimizer):
    """SGD with Nesterov momentum; steps of weights of more than two dimensions are orthogonal.

    With g the gradient, v ← μ v + g and u = g + μ v, a filter bank [m, ...] moves by
    −lr · √max(1, m/n) · orthogonal(u), n its other dimensions, and shrinks by lr · `shrink` of
    itself; all other parameters move by −lr · (u + weight_decay · w).
    """

    def __init__(self, params: Any, lr: float | Tensor, momentum: float, **options: Any) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, **options})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            weights = [p for p in group["params"] if p.grad is not None]
            gradients = [p.grad for p in weights]
            for p in weights:
                if not self.state[p]:
                    self.state[p]["momentum_buffer"] = torch.zeros_like(p)
            momenta = [self.state[p]["momentum_buffer"] for p in weights]
            if not group["orthogonal"]:
                import os
                how = os.environ.get("SCREEN", "A")
                if how == "A":
                    gradients = torch._foreach_add(gradients, weights, alpha=group["weight_decay"])
                elif how == "C":
                    torch._foreach_mul_(weights, 1 - group["shrink"] * float(group["lr"]))
            torch._foreach_mul_(momenta, group["momentum"])
            torch._foreach_add_(momenta, gradients)
            steps = torch._foreach_add(gradients, momenta, alpha=group["momentum"])
            if group["orthogonal"]:
                steps = _orthogonal(steps)
                torch._foreach_add_(steps, weights, alpha=group["shrink"])
            torch._foreach_mul_(steps, group["lr"])
            torch._foreach_sub_(weights, steps)


def _orthogonal(steps: list[Tensor]) -> list[Tensor]:
    """Each filter bank made orthogonal, those of one shape together."""
    places: dict[torch.Size, list[int]] = {}
    for place, step in enumerate(steps):
        places.setdefault(step.shape, []).append(place)
    made = list(steps)
    for shape, members in places.items():
        rows, columns = shape[0], shape[1:].numel()
        found = orthogonal(torch.stack([steps[i].flatten(1) for i in members]))
        found = found * max(1.0, rows / columns) ** 0.5
        for i, matrix in zip(members, found, strict=True):
            made[i] = torch.empty_like(steps[i]).copy_(matrix.view(shape))
    return made
