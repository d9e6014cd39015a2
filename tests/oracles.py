"""Independent oracles: dense linear algebra, adaptive quadrature, Monte Carlo."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import torch
from scipy import integrate
from torch import Tensor, nn


def random_covariance(channels: int, seed: int = 0) -> Tensor:
    """A random positive definite matrix in float64, not diagonal and not well scaled."""
    generator = torch.Generator().manual_seed(seed)
    factor = torch.randn(channels, channels + 1, generator=generator, dtype=torch.float64)
    scale = torch.rand(channels, generator=generator, dtype=torch.float64) + 0.1
    return scale[:, None] * (factor @ factor.T / channels) * scale[None, :]


@torch.no_grad()
def jacobian(function: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> Tensor:
    """The matrix of an affine map of one image, [outputs, inputs], column by column."""
    size = math.prod(shape)
    zero = function(torch.zeros(1, *shape, dtype=torch.float64)).flatten()
    columns = []
    for index in range(size):
        basis = torch.zeros(size, dtype=torch.float64)
        basis[index] = 1.0
        columns.append(function(basis.view(1, *shape)).flatten() - zero)
    return torch.stack(columns, 1)


def dense_covariance(
    function: Callable[[Tensor], Tensor], cov: Tensor, shape: tuple[int, ...]
) -> Tensor:
    """Full covariance after an affine map when all pixels are independent with covariance `cov`.

    Returns [P, C, C]: the channel covariance at every output pixel.
    """
    pixels = math.prod(shape[1:])
    full = torch.kron(cov, torch.eye(pixels, dtype=torch.float64))
    matrix = jacobian(function, shape)
    out = matrix @ full @ matrix.T
    example = function(torch.zeros(1, *shape, dtype=torch.float64))
    channels = example.shape[1]
    blocks = out.view(channels, -1, channels, out.shape[0] // channels)
    return torch.diagonal(blocks, dim1=1, dim2=3).permute(2, 0, 1)


def largest_block(blocks: Tensor) -> Tensor:
    """The covariance of the pixel with the largest total variance: an interior one."""
    traces = torch.diagonal(blocks, dim1=1, dim2=2).sum(1)
    return blocks[traces.argmax()]


def is_psd(matrix: Tensor, tolerance: float = 1e-9) -> bool:
    """Whether a symmetric matrix is positive semi-definite up to rounding."""
    values = torch.linalg.eigvalsh(0.5 * (matrix + matrix.T).detach())
    return bool(values.min() >= -tolerance * max(1.0, float(values.abs().max())))


def gaussian_expectation(function: Callable[[float], float], mean: float, std: float) -> float:
    """E[f(x)] for x ~ N(mean, std²) by adaptive quadrature, split at the kink at 0."""
    if std == 0:
        return function(mean)

    def integrand(u: float) -> float:
        return function(mean + std * u) * math.exp(-0.5 * u * u) / math.sqrt(2 * math.pi)

    kink = -mean / std
    edges = sorted({-12.0, 12.0, *([kink] if -12 < kink < 12 else [])})
    return sum(
        integrate.quad(integrand, low, high, epsabs=1e-14, epsrel=1e-12, limit=200)[0]
        for low, high in itertools.pairwise(edges)
    )


def monte_carlo_logits(model: nn.Module, x: Tensor, sigma: float, samples: int) -> Tensor:
    """Logits of noisy copies of one image, [samples, classes]."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(samples, *x.shape, generator=generator, dtype=x.dtype)
    with torch.no_grad():
        return torch.cat([model(x + sigma * part) for part in noise.split(1000)])


def relative(a: Tensor, b: Tensor) -> float:
    """‖a − b‖ / ‖b‖."""
    a, b = a.detach(), b.detach()
    return float((a - b).norm() / b.norm().clamp_min(1e-300))


def normal_cdf(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))


def normal_pdf(z: float) -> float:
    return math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)


def bivariate_relu_covariance(mean: np.ndarray, cov: np.ndarray) -> float:
    """Cov(relu(x), relu(y)) by two-dimensional Gauss–Hermite-free quadrature: E over x of the
    closed conditional mean of relu(y)."""
    (mx, my), sx = mean, math.sqrt(cov[0, 0])
    slope = cov[0, 1] / cov[0, 0]
    rest = math.sqrt(max(cov[1, 1] - slope * cov[0, 1], 0.0))

    def conditional(x: float) -> float:
        m = my + slope * (x - mx)
        if rest == 0:
            return max(m, 0.0)
        return m * normal_cdf(m / rest) + rest * normal_pdf(m / rest)

    def relu(x: float) -> float:
        return max(x, 0.0)

    def moment(m: float, s: float) -> float:
        return m * normal_cdf(m / s) + s * normal_pdf(m / s)

    product = gaussian_expectation(lambda x: relu(x) * conditional(x), mx, sx)
    return product - moment(mx, sx) * moment(my, math.sqrt(cov[1, 1]))
