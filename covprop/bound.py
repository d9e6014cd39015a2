"""The bound that removes cross-correlation (Theorem 2 of the paper; Hanebeck et al. 2001).

For x₁ ~ N(0, Σ₁) and x₂ ~ N(0, Σ₂) with |corr(aᵀx₁, bᵀx₂)| ≤ r_max in all directions a and b (for
single entries alone it is not enough), B = diag(τ₁Σ₁, τ₂Σ₂) satisfies B ⪰ Cov(x₁, x₂) with

    τ₁ = 1/(η − κ),  τ₂ = 1/(η + κ),  κ² ≤ (1 − 2η)/(1 − r_max²) + η²,  ½ ≤ η ≤ 1/(1 + r_max).

The propagation uses η = 1/(1 + r_max) and κ = 0, so τ₁ = τ₂ = 1 + r_max, which is
`Settings.correlation_factor`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from covprop.errors import InvalidInput


def inflation(r_max: float, eta: float | None = None, kappa: float = 0.0) -> tuple[float, float]:
    """(τ₁, τ₂) for a correlation bound r_max and a choice of η and κ.

    Example:
        >>> inflation(0.25)
        (1.25, 1.25)
    """
    if not 0.0 <= r_max < 1.0:
        raise InvalidInput(f"r_max is {r_max}: the bound needs a correlation bound in [0, 1).")
    eta = 1.0 / (1.0 + r_max) if eta is None else eta
    if not 0.5 <= eta <= 1.0 / (1.0 + r_max) + 1e-12:
        raise InvalidInput(
            f"eta is {eta}: it lies between 0.5 and 1/(1 + r_max) = {1 / (1 + r_max):.6g}."
        )
    limit = max(0.0, (1.0 - 2.0 * eta) / (1.0 - r_max**2) + eta**2)
    if kappa**2 > limit + 1e-12 or abs(kappa) >= eta:
        raise InvalidInput(
            f"kappa is {kappa}: its absolute value is at most {math.sqrt(limit):.6g} here, "
            "and below eta."
        )
    return 1.0 / (eta - kappa), 1.0 / (eta + kappa)


def decorrelated_bound(
    first: Tensor, second: Tensor, r_max: float, eta: float | None = None, kappa: float = 0.0
) -> Tensor:
    """B = diag(τ₁Σ₁, τ₂Σ₂), which bounds the joint covariance of every pair whose correlation is
    at most r_max in all directions."""
    for matrix in (first, second):
        if not isinstance(matrix, Tensor):
            raise InvalidInput(f"a covariance is a tensor, not a {type(matrix).__name__}.")
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
            raise InvalidInput(f"a covariance is square, not {list(matrix.shape)}.")
    tau_1, tau_2 = inflation(r_max, eta, kappa)
    return torch.block_diag(tau_1 * first, tau_2 * second)
