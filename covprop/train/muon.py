"""Muon (Jordan et al. 2024): SGD that moves filter banks by orthogonal matrices.

A filter bank W [out, in, ...], seen as a matrix, moves by the orthogonal matrix nearest to its
momentum instead of the momentum itself: all of its directions are learnt at one pace, where SGD
learns the strongest first.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from covprop.kernels import HAVE_TRITON

if TYPE_CHECKING:
    from covprop.kernels.triton_muon import Banks

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the published a s + b s³ + c s⁵, which brings singular values near 1 in five rounds."""
ROUNDS = 5


class Muon(Optimizer):
    """SGD in which weights of three and more dimensions take orthogonal steps.

    With g the gradient, v ← μ v + g, and u = g + μ v (Nesterov) or v, a parameter moves by

        w ← w − lr · (s(u) + weight_decay · w),

    where s(u) = √max(1, m/n) · `orthogonal`(u) for a filter bank seen as a matrix [m, n], and u
    itself for all else. Steps of filter banks thus have one size whatever the loss is scaled by,
    and their weight decay, which no gradient outweighs, is about a hundred times that of SGD.

    One filter bank after the other would cost a GPU many small kernels. Those of one shape take
    their steps together, and where there is Triton all of them do (`covprop.kernels.triton_muon`;
    not with COVPROP_FUSED=0).

    Example:
        >>> w = torch.nn.Parameter(torch.zeros(2, 4, 3, 3))
        >>> w.grad = torch.randn(2, 4, 3, 3)
        >>> Muon([w], lr=0.1).step()
        >>> bool((torch.linalg.svdvals(w.flatten(1)) < 0.13).all())
        True
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor,
        momentum: float = 0.9,
        *,
        nesterov: bool = True,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {"momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        super().__init__(params, {"lr": lr, **defaults})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move every parameter that has a gradient."""
        for place, group in enumerate(self.param_groups):
            weights = [p for p in group["params"] if p.grad is not None]
            together = [p for p in weights if _fused(p)]
            if together:
                self._step_together(place, group, together)
                weights = [p for p in weights if not _fused(p)]
            if weights:
                self._step(group, weights)

    def _step_together(self, place: int, group: dict[str, Any], weights: list[Tensor]) -> None:
        """Filter banks, by kernels that take all of them at once."""
        from covprop.kernels.triton_muon import Banks, laid_as

        spaces: dict[int, Banks] = self.__dict__.setdefault("_spaces", {})
        space = spaces.get(place)
        if space is None or not space.fits(weights):
            space = spaces[place] = Banks(weights)
        options = {name: group[name] for name in ("lr", "momentum", "nesterov", "weight_decay")}
        momenta = [laid_as(p, self._momentum(p)) for p in weights]
        for p, v in zip(weights, momenta, strict=True):  # a checkpoint may have it laid otherwise
            self.state[p]["momentum_buffer"] = v
        space.step(weights, momenta, **options, coefficients=COEFFICIENTS, rounds=ROUNDS)

    def _step(self, group: dict[str, Any], weights: list[Tensor]) -> None:
        gradients = [p.grad for p in weights if p.grad is not None]
        momenta = [self._momentum(p) for p in weights]
        torch._foreach_mul_(momenta, group["momentum"])
        torch._foreach_add_(momenta, gradients)
        if group["nesterov"]:
            steps = list(torch._foreach_add(gradients, momenta, alpha=group["momentum"]))
        else:
            steps = [v.clone() for v in momenta]
        alike: dict[torch.Size, list[Tensor]] = defaultdict(list)
        for step in steps:
            if step.ndim > 2:
                alike[step.shape].append(step)
        for banks in alike.values():
            _orthogonalise(banks)
        torch._foreach_add_(steps, weights, alpha=group["weight_decay"])
        torch._foreach_mul_(steps, group["lr"])
        torch._foreach_sub_(weights, steps)

    def _momentum(self, p: Tensor) -> Tensor:
        if not self.state[p]:
            self.state[p]["momentum_buffer"] = torch.zeros_like(p)
        return self.state[p]["momentum_buffer"]


def _fused(weight: Tensor) -> bool:
    """Whether Triton moves it."""
    if not weight.is_cuda or not HAVE_TRITON or os.environ.get("COVPROP_FUSED") == "0":
        return False
    from covprop.kernels.triton_muon import takes

    return takes(weight)


def _orthogonalise(banks: list[Tensor]) -> None:
    """Steps of filter banks of one shape made orthogonal where they are, all in one go.

    On a GPU it is done in bfloat16. To fill banks of several shapes up to one size starts fewer
    kernels, but on an H200 such runs ended with launch failures.
    """
    stack = torch.stack([bank.flatten(1) for bank in banks])
    rows, columns = stack.shape[1:]
    made = orthogonal(stack.bfloat16() if stack.is_cuda else stack).to(stack.dtype)
    made = made * max(1.0, rows / columns) ** 0.5
    for bank, matrix in zip(banks, made, strict=True):
        bank.copy_(matrix.view(bank.shape))


def orthogonal(matrices: Tensor) -> Tensor:
    """About U Vᵀ for each matrix U S Vᵀ of [k, m, n], by rounds of Newton–Schulz.

    Singular values above 1/500 of the Frobenius norm end between 0.68 and 1.21, smaller ones grow
    485 times: that serves as well as U Vᵀ, and is cheap.

    Example:
        >>> values = torch.linalg.svdvals(orthogonal(torch.randn(2, 4, 8)))
        >>> bool((values > 0.6).all() and (values < 1.3).all())
        True
    """
    a, b, c = COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp_min(1e-30)
    for _ in range(ROUNDS):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x
