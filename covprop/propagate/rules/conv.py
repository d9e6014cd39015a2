"""Convolutions: Σ_out = factor · Σ_t W_t Σ W_tᵀ over the taps t of the kernel.

Index letters: o output channel, i and j input channels, t tap, g and h groups.

One covariance is shared by all output pixels: that of an interior pixel, which sees every tap. A
pixel at a zero-padded border sees fewer, so the shared value bounds its covariance. The other
padding modes repeat pixels at the border; these few pixels are treated as interior ones.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covprop.kernels import tap_sum
from covprop.propagate.channels import constant_in, expand_pixels
from covprop.propagate.registry import Layer, option, rule
from covprop.propagate.settings import Settings

HALF_CHANNELS = 16
"""Fewest input channels for which products are taken in bfloat16."""


def sum_over_taps(
    cov: Tensor, weight: Tensor, groups: int = 1, dtype: torch.dtype | None = None
) -> Tensor:
    """Σ_t W_t Σ W_tᵀ for a weight laid out [o, t, i].

    Without groups these are two plain matrix products: [ot, i] @ [i, i], then [o, ti] @ [ti, o],
    in the precision `dtype`. A channels-last convolution weight has this layout in memory, so
    nothing is copied.
    """
    if groups == 1:
        return tap_sum(weight, cov, dtype)
    out_channels, taps, in_channels = weight.shape
    grouped = weight.view(groups, out_channels // groups, taps, in_channels)
    blocks = cov.view(groups, in_channels, groups, in_channels)
    product = torch.einsum("goti,gihj->gothj", grouped, blocks)
    return torch.einsum("gothj,hptj->gohp", product, grouped).reshape(out_channels, out_channels)


@rule(nn.Conv1d, nn.Conv2d, nn.Conv3d, F.conv1d, F.conv2d, F.conv3d)
def conv(layer: Layer, cov: Tensor, settings: Settings) -> Tensor:
    """(1 + r_max) Σ_t W_t Σ W_tᵀ over the taps t."""
    groups = option(layer, 6, "groups", 1)
    weight = constant_in(option(layer, 1, "weight"), cov, settings)  # [o, i/groups, *kernel]
    cov = expand_pixels(cov, groups * weight.shape[1])  # x.flatten(1)[:, :, None, None]
    taps = weight[0, 0].numel()
    spatial_first = weight.movedim(1, -1).reshape(weight.shape[0], taps, weight.shape[1])
    # Few channels are cheap in float32, and the image's own come before all other layers.
    half = settings.products == "bfloat16" and weight.shape[1] >= HALF_CHANNELS
    total = sum_over_taps(cov, spatial_first, groups, torch.bfloat16 if half else None)
    return settings.correlation_factor(taps) * total


@rule(
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    *(F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d),
)
def conv_transpose(layer: Layer, cov: Tensor, settings: Settings) -> Tensor:
    """(1 + r_max) Σ_t W_t Σ W_tᵀ over the taps t.

    With stride s an output pixel sees only the taps of its phase; the sum over all taps is a
    bound for every phase, exact for stride 1.
    """
    groups = option(layer, 6, "groups", 1)
    weight = constant_in(option(layer, 1, "weight"), cov, settings)  # [i, o/groups, *kernel]
    in_channels, per_group = weight.shape[:2]
    cov = expand_pixels(cov, in_channels)
    taps = weight[0, 0].numel()
    by_group = weight.reshape(groups, in_channels // groups, per_group, taps)
    laid_out = by_group.permute(0, 2, 3, 1).reshape(groups * per_group, taps, -1)
    return settings.correlation_factor(taps) * sum_over_taps(cov, laid_out, groups)
