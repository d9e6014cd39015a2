"""Element-wise activations: the mean in closed form or by quadrature, the covariance as a bound.

With α the largest slope of f, f(x) − f(y) is at most α|x − y|, and the covariance after f is
taken as α²Σ: Σ itself for ReLU. It does not depend on the image.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covprop.errors import InvalidInput
from covprop.kernels import moment_relu, moment_relu_beside
from covprop.kernels.moments import (
    gelu_mean,
    hermite_coefficients,
    quadrature_mean,
)
from covprop.layers import HermiteActivation, per_channel
from covprop.propagate.channels import channel_std, constant_in, expand_pixels
from covprop.propagate.registry import Call, Layer, Operation, Unsupported, option, rule
from covprop.propagate.settings import Settings

Slope = float | Callable[[Layer], float]
ABS = (torch.abs, torch.Tensor.abs, operator.abs)


def relu_mean(layer: Layer, mean: Tensor, std: Tensor, settings: Settings) -> Tensor:
    return moment_relu(mean, std)


@rule(
    *(nn.ReLU, F.relu, F.relu_, torch.relu, torch.relu_),
    *(torch.Tensor.relu, torch.Tensor.relu_),
    mean=relu_mean,
    beside=moment_relu_beside,
)
def relu(layer: Layer, cov: Tensor, settings: Settings) -> Tensor:
    """Σ (+ a floor on the diagonal): ReLU does not increase a variance."""
    if settings.relu_floor == 0.0:
        return cov
    return cov + settings.relu_floor * torch.eye(len(cov), dtype=cov.dtype, device=cov.device)


def negative_slope(layer: Layer) -> float:
    """The slope left of 0: |x| is a leaky ReLU of slope −1."""
    if isinstance(layer, Call) and layer.function in ABS:
        return -1.0
    return float(option(layer, 1, "negative_slope", 0.01))


def leaky_mean(layer: Layer, mean: Tensor, std: Tensor, settings: Settings) -> Tensor:
    return moment_relu(mean, std, negative_slope(layer))


@rule(nn.LeakyReLU, F.leaky_relu, F.leaky_relu_, *ABS, mean=leaky_mean)
def leaky_relu(layer: Layer, cov: Tensor, settings: Settings) -> Tensor:
    """α²Σ, α = max(1, |negative slope|)."""
    return cov * max(1.0, abs(negative_slope(layer))) ** 2


def random_slopes(layer: Layer) -> tuple[float, float]:
    """The range that a randomized leaky ReLU draws its slopes from; in evaluation its middle."""
    ends = option(layer, 1, "lower", 1 / 8), option(layer, 2, "upper", 1 / 3)
    return ends if option(layer, 3, "training", False) else (sum(ends) / 2,) * 2


def random_leaky_mean(layer: Layer, mean: Tensor, std: Tensor, settings: Settings) -> Tensor:
    lower, upper = random_slopes(layer)
    if lower == upper:
        return moment_relu(mean, std, lower)
    slope = torch.empty_like(mean, dtype=std.dtype).uniform_(lower, upper)
    return leaky_mean_of(mean, std, slope)


@rule(nn.RReLU, F.rrelu, F.rrelu_, torch.rrelu, mean=random_leaky_mean)
def random_leaky_relu(layer: Layer, cov: Tensor, settings: Settings) -> Tensor:
    """α²Σ, α the largest of 1 and the slopes that may be drawn; in evaluation there is one."""
    return cov * max(1.0, *(abs(slope) for slope in random_slopes(layer))) ** 2


def prelu_mean(layer: Layer, mean: Tensor, std: Tensor, settings: Settings) -> Tensor:
    return leaky_mean_of(mean, std, per_channel(option(layer, 1, "weight"), mean).to(std.dtype))


def leaky_mean_of(mean: Tensor, std: Tensor, slope: Tensor) -> Tensor:
    """Of slopes in a tensor, which have a gradient or differ from number to number."""
    wide = mean.to(std.dtype)
    return (slope * wide + (1 - slope) * moment_relu(wide, std)).to(mean.dtype)


@rule(nn.PReLU, F.prelu, mean=prelu_mean)
def prelu(layer: Layer, cov: Tensor, settings: Settings) -> Tensor:
    """α²Σ, α the largest of 1 and the slopes of all channels."""
    slopes = constant_in(option(layer, 1, "weight"), cov, settings)
    return cov * slopes.abs().clamp_min(1.0).max() ** 2


# The largest slope of xΦ(x), at x = √2, and of its tanh approximation.
GELU_SLOPES = {"none": 1.1289041452, "tanh": 1.1289930687}


def gelu_or_quadrature(layer: Layer, mean: Tensor, std: Tensor, settings: Settings) -> Tensor:
    if option(layer, 1, "approximate", "none") != "none":
        return elementwise_mean(layer, mean, std, settings)
    return gelu_mean(mean.to(std.dtype), per_channel(std, mean)).to(mean.dtype)


@rule(nn.GELU, F.gelu, mean=gelu_or_quadrature)
def gelu(layer: Layer, cov: Tensor, settings: Settings) -> Tensor:
    """α²Σ, α = 1.129 the largest slope."""
    return cov * GELU_SLOPES[option(layer, 1, "approximate", "none")] ** 2


def elementwise_mean(layer: Layer, mean: Tensor, std: Tensor, settings: Settings) -> Tensor:
    wide, s = mean.to(std.dtype), per_channel(std, mean)
    return quadrature_mean(layer, wide, s, settings.quadrature_nodes).to(mean.dtype)


def elementwise(*operations: Operation, slope: Slope) -> None:
    """Register an element-wise activation: mean by quadrature, covariance α²Σ, α = `slope`.

    Gauss–Hermite quadrature with 32 nodes is good to 1e-5 for smooth activations at s ≤ 1 and to
    1e-3 at s = 2; across a kink (ELU, hard swish …) or a sharp bend (softplus with beta = 10) it is
    within 2 % of s. Raise `Settings.quadrature_nodes` for more.

    Example:
        >>> class Swish2(nn.Module):
        ...     def forward(self, x):
        ...         return x * torch.sigmoid(2 * x)
        >>> elementwise(Swish2, slope=1.0999)
    """
    if not callable(slope) and not slope >= 0:
        raise InvalidInput(f"slope is {slope}: give the largest absolute slope of the activation.")

    @rule(*operations, mean=elementwise_mean)
    def scaled(layer: Layer, cov: Tensor, settings: Settings) -> Tensor:
        """α²Σ, α the largest slope."""
        return cov * (slope(layer) if callable(slope) else slope) ** 2


def elu_slope(layer: Layer) -> float:
    return max(1.0, abs(float(option(layer, 1, "alpha", 1.0))))


def celu_slope(layer: Layer) -> float:
    """exp(x/α) at x ≤ 0: 1 for α above 0, and without a bound below."""
    alpha = float(option(layer, 1, "alpha", 1.0))
    if not alpha > 0:
        raise Unsupported(
            f"its slope has no bound, for alpha is {alpha}", "give it an alpha above 0"
        )
    return 1.0


def softplus_slope(layer: Layer) -> float:
    """1, but where torch goes on as x itself it jumps down, by log(1 + exp(−threshold))/beta."""
    if (threshold := option(layer, 2, "threshold", 20)) < 15:
        raise Unsupported(
            f"it jumps where beta·x exceeds its threshold of {threshold:g}",
            "give it a threshold of 15 or more, at which the jump is below rounding",
        )
    return 1.0


elementwise(nn.SiLU, F.silu, slope=1.0998393201)
elementwise(nn.Mish, F.mish, slope=1.0884981613)
elementwise(nn.Tanh, F.tanh, torch.tanh, torch.Tensor.tanh, slope=1.0)
elementwise(nn.Sigmoid, F.sigmoid, torch.sigmoid, torch.Tensor.sigmoid, slope=0.25)
elementwise(nn.LogSigmoid, F.logsigmoid, slope=1.0)
elementwise(nn.Softplus, F.softplus, slope=softplus_slope)
elementwise(nn.Softsign, F.softsign, slope=1.0)
elementwise(nn.Softshrink, F.softshrink, slope=1.0)
elementwise(nn.Tanhshrink, F.tanhshrink, slope=1.0)
elementwise(nn.ELU, F.elu, slope=elu_slope)
elementwise(nn.CELU, F.celu, slope=celu_slope)
elementwise(nn.SELU, F.selu, torch.selu, slope=1.0507009873554805 * 1.6732632423543772)
elementwise(nn.ReLU6, F.relu6, slope=1.0)
elementwise(nn.Hardtanh, F.hardtanh, slope=1.0)
elementwise(torch.clamp, torch.Tensor.clamp, torch.clip, torch.Tensor.clip, slope=1.0)
elementwise(torch.clamp_min, torch.Tensor.clamp_min, slope=1.0)
elementwise(torch.clamp_max, torch.Tensor.clamp_max, slope=1.0)
elementwise(nn.Hardsigmoid, F.hardsigmoid, slope=1.0 / 6.0)
elementwise(nn.Hardswish, F.hardswish, slope=1.5)


@rule(
    *(torch.maximum, torch.Tensor.maximum, torch.minimum, torch.Tensor.minimum),
    mean=elementwise_mean,
)
def bounded(
    call: Call, covs: tuple[Tensor | None, ...], settings: Settings, shapes: tuple, out_shape: tuple
) -> Tensor:
    """Σ, if the other operand is a constant: the result moves no further than its input."""
    if all(cov is not None for cov in covs):
        raise Unsupported(
            "the larger or smaller of two noisy values is not Gaussian",
            "take one with a constant, or add the two",
        )
    random = 0 if covs[0] is not None else 1
    if shapes[random] != out_shape:
        raise Unsupported(
            f"the constant turns {list(shapes[random])} into {list(out_shape)}",
            "give it a constant that is no larger than its input",
        )
    cov = covs[random]
    assert cov is not None
    return cov


def hermite_mean(layer: HermiteActivation, mean: Tensor, std: Tensor, settings: Settings) -> Tensor:
    wide, s = mean.to(std.dtype), per_channel(std, mean)
    return hermite_coefficients(layer.coefficients.to(std.dtype), wide, s)[0].to(mean.dtype)


@rule(HermiteActivation, mean=hermite_mean)
def hermite(
    layer: HermiteActivation, cov: Tensor, settings: Settings, mean: Tensor | None, shape: tuple
) -> Tensor:
    """Mehler: Cov(f(x_i), f(x_j)) = Σ_{k≥1} a_k[i] a_k[j] ρ_ijᵏ, exact for a Gaussian.

    The a_k depend on the mean; the shared covariance is their average over images and pixels, or
    that at mean 0 when Σ is computed without an image.
    """
    features = shape[0]
    std = channel_std(cov, features)
    cov = expand_pixels(cov, features)
    safe = torch.where(std > 0, std, torch.ones_like(std))
    correlation = cov / (safe[:, None] * safe[None, :])
    at = std.new_zeros(1, features) if mean is None else mean.to(cov.dtype)
    coefficients = constant_in(layer.coefficients, cov, settings)
    total, power = torch.zeros_like(cov), torch.ones_like(cov)
    for a in hermite_coefficients(coefficients, at, per_channel(std, at))[1:]:
        power = power * correlation
        rows = a.transpose(0, 1).flatten(1)
        total = total + power * (rows @ rows.T) / rows.shape[1]
    return total
