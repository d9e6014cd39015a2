"""Means and variances of activations under N(μ, s²), in closed form: the plain torch reference.

Notation: z = μ/s, Φ and φ the standard normal distribution function and density. All functions
take μ and s of broadcastable shapes, s ≥ 0, and are finite for every finite μ and s, s = 0
included. The rules read the means alone: after an activation they keep a bound on Σ, not the
exact variances, which differ by image.
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


def relu_variance(mean: Tensor, std: Tensor) -> Tensor:
    """Var[relu(x)] = s²[(1 + z²)Φ(z) + zφ(z) − (zΦ(z) + φ(z))²].

    For z > 0 that subtracts large numbers; relu(x) = x + relu(−x) gives the same value from the
    small tail: s²[1 − 2Φ(−z) + v(−z)].
    """
    z = standardise(mean, std)
    tail = -z.abs()
    cdf, pdf = normal_cdf(tail), normal_pdf(tail)
    lower = (1 + tail * tail) * cdf + tail * pdf - (tail * cdf + pdf) ** 2
    unit = torch.where(z > 0, 1 - 2 * cdf + lower, lower)
    return std * std * unit.clamp_min(0.0)


def leaky_relu_mean(mean: Tensor, std: Tensor, slope: float | Tensor) -> Tensor:
    """E[leaky(x)] = aμ + (1 − a)·E[relu(x)], since leaky(x) = ax + (1 − a)relu(x)."""
    return slope * mean + (1 - slope) * relu_mean(mean, std)


def leaky_relu_variance(mean: Tensor, std: Tensor, slope: float | Tensor) -> Tensor:
    """a²s² + (1 − a)²Var[relu(x)] + 2a(1 − a)s²Φ(z), with Cov(x, relu(x)) = s²Φ(z)."""
    covariance = std * std * normal_cdf(standardise(mean, std))
    rest = 1 - slope
    return (
        slope * slope * std * std
        + rest * rest * relu_variance(mean, std)
        + 2 * slope * rest * covariance
    )


def gelu_mean(mean: Tensor, std: Tensor) -> Tensor:
    """E[xΦ(x)] = μΦ(h) + s²φ(h)/√(1 + s²), with h = μ/√(1 + s²)."""
    root = torch.sqrt(1 + std * std)
    h = mean / root
    return mean * normal_cdf(h) + std * (std / root) * normal_pdf(h)


def gelu_variance(mean: Tensor, std: Tensor) -> Tensor:
    """Var[xΦ(x)], from E[x²f] = (μ² + s²)E[f] + 2μs²E[f′] + s⁴E[f″] with f = Φ².

    E[f] = Φ(h) − 2T(h, a) with Owen's T, a = 1/√(1 + 2s²) and h = μ/√(1 + s²); its derivatives in
    μ are E[f′] = 2φ(h)Φ(ah)/r and E[f″] = 2[aφ(h)φ(ah) − hφ(h)Φ(ah)]/r² with r = √(1 + s²).
    Computed in float64, since it is a difference of large numbers.
    """
    mu, s = mean.double(), std.double()
    variance = s * s
    root = torch.sqrt(1 + variance)
    h, a = mu / root, torch.rsqrt(1 + 2 * variance)
    cdf, pdf = normal_cdf(a * h), normal_pdf(h)
    zeroth = normal_cdf(h) - 2 * owens_t(h, a)
    first = 2 * pdf * cdf / root
    second = 2 * (a * pdf * normal_pdf(a * h) - h * pdf * cdf) / root**2
    square = (mu * mu + variance) * zeroth + 2 * mu * variance * first + variance**2 * second
    return (square - gelu_mean(mu, s) ** 2).clamp_min(0.0).to(mean.dtype)


def owens_t(h: Tensor, a: Tensor, nodes: int = 32) -> Tensor:
    """T(h, a) = (1/2π)∫₀ᵃ exp(−h²(1 + t²)/2)/(1 + t²) dt for 0 ≤ a ≤ 1, by Gauss–Legendre."""
    points, weights = np.polynomial.legendre.leggauss(nodes)
    total = torch.zeros_like(h * a)
    for point, weight in zip(points.tolist(), weights.tolist(), strict=True):
        t = 0.5 * a * (point + 1)
        square = 1 + t * t
        total = total + weight * torch.exp(-0.5 * h * h * square) / square
    return total * a / (4 * math.pi)


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
