"""What rules share: a matrix Σ over channels, read off, scaled, or spread over the pixels of a
flattened image."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from covprop.propagate.settings import Settings


class _Deviation(torch.autograd.Function):
    """√v, with a zero derivative instead of an infinite one at 0.

    Backward needs only the result. Autograd by itself would keep the variances, and with them all
    of Σ, since they are a view of its diagonal.
    """

    @staticmethod
    def forward(variance: Tensor) -> Tensor:
        std = torch.sqrt(variance.clamp_min(torch.finfo(variance.dtype).tiny))
        return torch.where(variance > 0, std, torch.zeros_like(std))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (std,) = ctx.saved_tensors
        slope = 0.5 / torch.where(std > 0, std, torch.ones_like(std))
        return grad * torch.where(std > 0, slope, torch.zeros_like(std))


def channel_std(cov: Tensor, features: int) -> Tensor:
    """√diag Σ for each feature: one a channel, repeated over the pixels of a flattened image.

    A zero variance has a zero derivative here instead of an infinite one.
    """
    std = _Deviation.apply(torch.diagonal(cov))
    return std if len(std) == features else std.repeat_interleave(features // len(std))


def expand_pixels(cov: Tensor, features: int) -> Tensor:
    """The covariance of all f = N·M features of a flattened image: Σ ⊗ I_M."""
    pixels = features // cov.shape[0]
    if pixels == 1:
        return cov
    return torch.kron(cov, torch.eye(pixels, dtype=cov.dtype, device=cov.device))


def scale_channels(cov: Tensor, scale: Tensor) -> Tensor:
    """Σ ∘ (s sᵀ); a scale for each feature of a flattened image expands Σ to features first."""
    cov = expand_pixels(cov, scale.numel())
    return cov * (scale[:, None] * scale[None, :])


def constant_in(weight: Tensor, cov: Tensor, settings: Settings) -> Tensor:
    """A weight in Σ's precision, held constant where the settings say so."""
    return (weight.detach() if settings.detach_covariance else weight).to(cov)
