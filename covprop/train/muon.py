"""Muon (Jordan et al. 2024): SGD that moves filter banks by orthogonal matrices.

A filter bank W [out, in, ...], seen as a matrix, moves by the orthogonal matrix nearest to its
momentum instead of the momentum itself: all of its directions are learnt at one pace, where SGD
learns the strongest first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

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
        self.streams: dict[int, Any] = {}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move every parameter that has a gradient."""
        for group in self.param_groups:
            weights = [p for p in group["params"] if p.grad is not None]
            if not weights:
                continue
            gradients = [p.grad for p in weights]
            momenta = [self._momentum(p) for p in weights]
            torch._foreach_mul_(momenta, group["momentum"])
            torch._foreach_add_(momenta, gradients)
            start = gradients if group["nesterov"] else torch._foreach_mul(momenta, 0.0)
            ahead = group["momentum"] if group["nesterov"] else 1.0
            steps = torch._foreach_add(start, momenta, alpha=ahead)
            self._orthogonalise([step for step in steps if step.ndim > 2])
            torch._foreach_add_(steps, weights, alpha=group["weight_decay"])
            torch._foreach_mul_(steps, group["lr"])
            torch._foreach_sub_(weights, steps)

    def _momentum(self, p: Tensor) -> Tensor:
        if not self.state[p]:
            self.state[p]["momentum_buffer"] = torch.zeros_like(p)
        return self.state[p]["momentum_buffer"]

    def _orthogonalise(self, banks: list[Tensor]) -> None:
        """Filter banks made orthogonal where they are, those of as many rows in one go.

        On a GPU each number of rows has a stream: their many small kernels run side by side.
        """
        alike: dict[int, list[Tensor]] = defaultdict(list)
        for bank in banks:
            alike[min(len(bank), bank[0].numel())].append(bank)
        if not banks or not banks[0].is_cuda:
            for members in alike.values():
                _orthogonalise(members)
            return
        here = torch.cuda.current_stream(banks[0].device)
        for rows, members in alike.items():
            if rows not in self.streams:
                self.streams[rows] = torch.cuda.Stream(banks[0].device)
            self.streams[rows].wait_stream(here)
            with torch.cuda.stream(self.streams[rows]):
                _orthogonalise(members)
        for rows in alike:
            here.wait_stream(self.streams[rows])


def _orthogonalise(banks: list[Tensor]) -> None:
    """Banks of one smaller side; zero columns make their larger ones equal and change nothing."""
    sides = [sorted((len(bank), bank[0].numel())) for bank in banks]
    stack = banks[0].new_zeros(len(banks), sides[0][0], max(columns for _, columns in sides))
    places = [_as_bank(matrix, bank) for matrix, bank in zip(stack, banks, strict=True)]
    torch._foreach_copy_(places, banks)
    stack.copy_(orthogonal(stack))
    for place, bank in zip(places, banks, strict=True):
        torch.mul(place, max(1.0, len(bank) / bank[0].numel()) ** 0.5, out=bank)


def _as_bank(matrix: Tensor, bank: Tensor) -> Tensor:
    """The part of `matrix` [rows, columns] that holds `bank`, as a view of the bank's shape."""
    filters, size = len(bank), bank[0].numel()
    part = matrix[:, :size] if filters <= size else matrix[:, :filters].mT
    return part.unflatten(1, bank.shape[1:])


def orthogonal(matrices: Tensor) -> Tensor:
    """About U Vᵀ for each matrix U S Vᵀ of [k, m, n], m ≤ n, by rounds of Newton–Schulz.

    Singular values above 1/500 of the Frobenius norm end between 0.68 and 1.21, smaller ones grow
    485 times: that serves as well as U Vᵀ and is cheap. On a GPU it is computed in bfloat16.

    Example:
        >>> values = torch.linalg.svdvals(orthogonal(torch.randn(2, 4, 8)))
        >>> bool((values > 0.6).all() and (values < 1.3).all())
        True
    """
    a, b, c = COEFFICIENTS
    norm = matrices.square().sum((1, 2), keepdim=True).sqrt().clamp_min(1e-30)
    x = (matrices / norm).to(torch.bfloat16 if matrices.is_cuda else matrices.dtype)
    for _ in range(ROUNDS):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.to(matrices.dtype)
