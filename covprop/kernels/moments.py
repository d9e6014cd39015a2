"""Means of activations under N(μ, s²), in closed form: the plain torch reference.

Notation: z = μ/s, Φ and φ the standard normal distribution function and density. All functions
take μ and s of broadcastable shapes, s ≥ 0, and are finite for every finite μ and s, s = 0
included. There are no variances here: after an activation the rules keep a bound on Σ, since the
exact variances differ by image.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

SQRT_HALF = math.sqrt(0.5)
INV_SQRT_2PI = 1.0 / math.sqrt(2.0 * math.pi)


def normal_cdf(z: Tensor) -> Tensor:
    """Φ(z) = erfc(−z/√2)/2, accurate in the lower tail."""
    return 0.5 * torch.erfc(-SQRT_HALF * z)


def normal_pdf(z: Tensor) -> Tensor:
    """φ(z)."""
    return INV_SQRT_2PI * torch.exp(-0.5 * z * z)


def limit(dtype: torch.dtype) -> float:
    """Beyond this |z| both tails are below rounding: φ(10) = 8e-23, φ(37) = 2e-298. Ending there
    keeps subnormal numbers, which are slow, out of every later product."""
    return 37.0 if dtype == torch.float64 else 10.0


def standardise(mean: Tensor, std: Tensor) -> Tensor:
    """z = μ/s within ±`limit`; s = 0 gives an end of the range, or 0 where μ is 0 too."""
    bound = limit(std.dtype)
    return (mean / std.clamp_min(torch.finfo(std.dtype).tiny)).clamp(-bound, bound)


# Abramowitz and Stegun 7.1.26: erf(x) = 1 − (a₁t + … + a₅t⁵)exp(−x²), t = 1/(1 + px), x ≥ 0.
ERF_P = 0.3275911
ERF_A = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)


def quick_cdf_and_exp(z: Tensor) -> tuple[Tensor, Tensor]:
    """Φ(z) to 1e-7, and exp(−z²/2), from one exponential: what the GPU kernels compute."""
    bell = torch.exp(-0.5 * z * z)
    t = 1.0 / (1.0 + (ERF_P * SQRT_HALF) * z.abs())
    series = torch.zeros_like(t)
    for coefficient in reversed(ERF_A):
        series = (series + coefficient) * t
    tail = 0.5 * series * bell
    return torch.where(z > 0, 1.0 - tail, tail), bell


def relu_mean(mean: Tensor, std: Tensor) -> Tensor:
    """E[relu(x)] = μΦ(z) + sφ(z)."""
    z = standardise(mean, std)
    return (mean * normal_cdf(z) + std * normal_pdf(z)).clamp_min(0.0)


def gelu_mean(mean: Tensor, std: Tensor) -> Tensor:
    """E[xΦ(x)] = μΦ(h) + s²φ(h)/√(1 + s²), with h = μ/√(1 + s²)."""
    root = torch.sqrt(1 + std * std)
    h = mean / root
    return mean * normal_cdf(h) + std * (std / root) * normal_pdf(h)


@torch.compiler.assume_constant_result  # a compiler cannot look into it
def normal_nodes(nodes: int) -> tuple[list[float], list[float]]:
    """Points and weights of the Gauss–Hermite quadrature for the standard normal."""
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    return points.tolist(), (weights / weights.sum()).tolist()


def quadrature_mean(
    function: Callable[[Tensor], Tensor], mean: Tensor, std: Tensor, nodes: int
) -> Tensor:
    """E[f(x)] ≈ Σ_k w_k f(μ + s·u_k) at the Gauss–Hermite nodes of the standard normal."""
    total = torch.zeros_like(mean * std)
    for point, weight in zip(*normal_nodes(nodes), strict=True):
        total = total + weight * function(mean + point * std)
    return total


def hermite_coefficients(coefficients: Tensor, mean: Tensor, std: Tensor) -> list[Tensor]:
    """The a_k of f(μ + s·u) = Σ_k a_k h_k(u) for f = Σ_k c_k h_k (normalised Hermite), exactly.

    a_k = sᵏ/√k! · E[f⁽ᵏ⁾(μ + s·u)]. Derivatives follow h_k′ = √k h_{k−1}, and expectations
    e_k = E[h_k(μ + s·u)] the recursion √k e_k = μ e_{k−1} + (s² − 1)√(k−1) e_{k−2}.
    """
    count = len(coefficients)
    expected = [torch.ones_like(mean * std), mean + torch.zeros_like(std)]
    for k in range(2, count):
        step = mean * expected[-1] + (std * std - 1) * math.sqrt(k - 1) * expected[-2]
        expected.append(step / math.sqrt(k))
    result = []
    current = list(coefficients.unbind())
    for k in range(count):
        value = torch.zeros_like(expected[0])
        for c, e in zip(current, expected, strict=False):
            value = value + c * e
        result.append(value * std**k / math.sqrt(math.factorial(k)))
        current = [math.sqrt(j) * c for j, c in enumerate(current)][1:]
    return result
