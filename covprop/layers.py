"""Layers this package adds: act norm and a learnable Hermite activation; and what layers share."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from covprop.errors import InvalidInput
from covprop.options import is_whole

MOST_DEGREE = 32
"""The degree to which moments of a polynomial were compared with float64: in float32 mean and
variance are within 1e-5 for deviations to 2 and means to 5. At 40 a variance there can be beyond
float32, and from 60 on most are NaN, at any deviation."""


def per_channel(values: Tensor, x: Tensor) -> Tensor:
    """Values [C] shaped to broadcast over x [b, C, ...]."""
    return values.view(1, -1, *(1,) * (x.ndim - 2))


def all_but_channels(x: Tensor) -> list[int]:
    """The dimensions of batch and pixels of x [b, C, ...]."""
    return [0, *range(2, x.ndim)]


def per_dimension(value: int | Sequence[int], dimensions: int) -> list[int]:
    """An option given as one number, or one a dimension."""
    values = [value] if isinstance(value, int) else list(value)
    return values * dimensions if len(values) == 1 else values


def widened(x: Tensor) -> Tensor:
    """x in float32, or in float64 where it is that: sums in half precision would lose digits."""
    return x if x.dtype == torch.float64 else x.float()


def _look_again(module: nn.Module, incompatible: object) -> None:
    """What was loaded says by itself whether it is initialized."""
    assert isinstance(module, ActNorm)
    module._pending = True


class ActNorm(nn.Module):
    """Channel-wise affine map (x + shift)·exp(log_scale), started from data.

    The first batch seen in training sets shift and scale so that each channel of that batch comes
    out with mean 0 and variance 1; from then on both are ordinary parameters. A batch with one
    value a channel, such as a single vector, or with none has no variance and is refused.
    """

    initialized: Tensor

    def __init__(self, num_features: int) -> None:
        super().__init__()
        if not is_whole(num_features) or num_features < 1:
            raise InvalidInput(
                f"ActNorm has num_features {num_features!r}: give the number of channels, at "
                "least 1."
            )
        self.shift = nn.Parameter(torch.zeros(num_features))
        self.log_scale = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("initialized", torch.tensor(False))
        self._pending = True  # host-side copy, so that a step need not read the device
        self.register_load_state_dict_post_hook(_look_again)

    @torch.no_grad()
    def initialize(self, x: Tensor) -> None:
        """Set shift and scale from a batch."""
        count = x.numel() // max(x.shape[1], 1)
        if count < 2:  # its scale would be 1000, what keeps it from dividing by 0, or nan
            raise InvalidInput(
                "ActNorm sets its scale from the first batch in training, which has "
                f"{'one' if count else 'no'} value a channel here and so no variance: begin with "
                "two images or more, or call model.eval()."
            )
        dims = all_but_channels(x)
        wide = x.to(self.shift.dtype)
        self.shift.copy_(-wide.mean(dims))
        self.log_scale.copy_(-0.5 * torch.log(wide.var(dims, correction=0) + 1e-6))
        self.initialized.fill_(True)

    @property
    def pending(self) -> bool:
        """Whether the next batch will set shift and scale."""
        if self.training and self._pending and not self.initialized.is_meta:
            self._pending = not bool(self.initialized)
        return self.training and self._pending

    def forward(self, x: Tensor) -> Tensor:
        if self.pending and not x.is_meta:
            self.initialize(x)
        return (x + per_channel(self.shift, x)) * per_channel(self.log_scale.exp(), x)


class HermiteActivation(nn.Module):
    """f(x) = Σ_k c_k h_k(x), with learnable c_k and h_k the normalised Hermite polynomials.

    The h_k are orthonormal under the standard normal: E[h_j(u) h_k(u)] = δ_jk, and for two
    standard normals with correlation ρ, E[h_j(u) h_k(v)] = δ_jk ρᵏ (Mehler), so mean and
    covariance after the activation are exact under a Gaussian. It starts as the degree-k
    projection of ReLU. Its degree is at most 32: float32 cannot hold the moments of much higher
    ones.

    Example:
        >>> HermiteActivation(4)(torch.zeros(1)).shape
        torch.Size([1])
    """

    def __init__(self, degree: int = 4) -> None:
        super().__init__()
        if not is_whole(degree) or not 1 <= degree <= MOST_DEGREE:
            raise InvalidInput(
                f"HermiteActivation has degree {degree}: it needs a whole number, at least 1 and "
                f"at most {MOST_DEGREE}."
            )
        self.coefficients = nn.Parameter(torch.tensor(relu_coefficients(degree)))

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros_like(x)
        for coefficient, value in zip(
            self.coefficients, hermite(x, len(self.coefficients)), strict=True
        ):
            total = total + coefficient * value
        return total

    def extra_repr(self) -> str:
        return f"degree={len(self.coefficients) - 1}"


def hermite(x: Tensor, count: int) -> list[Tensor]:
    """The first `count` normalised Hermite polynomials: h_k = (x h_{k−1} − √(k−1) h_{k−2})/√k."""
    values = [torch.ones_like(x), x]
    for k in range(2, count):
        values.append((x * values[-1] - math.sqrt(k - 1) * values[-2]) / math.sqrt(k))
    return values[:count]


def relu_coefficients(degree: int) -> list[float]:
    """E[relu(u) h_k(u)] for k = 0 … degree: 1/√(2π), 1/2, then for even k ≥ 2
    (−1)^{k/2+1} (k−3)!!/√(2π k!), and 0 for odd k ≥ 3."""
    coefficients = [1 / math.sqrt(2 * math.pi), 0.5]
    for k in range(2, degree + 1):
        double_factorial = math.prod(range(k - 3, 0, -2))
        sign = (-1) ** (k // 2 + 1)
        even = sign * double_factorial / math.sqrt(2 * math.pi * math.factorial(k))
        coefficients.append(even if k % 2 == 0 else 0.0)
    return coefficients[: degree + 1]
