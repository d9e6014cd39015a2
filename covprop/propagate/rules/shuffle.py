"""Operations that exchange channels with each other, or with pixels.

Index letters: c channel, i and j row and column within a block of r × r pixels. Between channels
and pixels torch orders as channel c·r² + i·r + j of the one, pixel (i, j) of channel c of the
other.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covprop.propagate.channels import expand_pixels
from covprop.propagate.registry import Layer, Unsupported, option, rule
from covprop.propagate.settings import Settings


@rule(nn.ChannelShuffle, F.channel_shuffle, F.native_channel_shuffle)
def channel_shuffle(layer: Layer, cov: Tensor, settings: Settings, shape: tuple) -> Tensor:
    """Σ, its rows and columns in the new order of the channels."""
    groups = option(layer, 1, "groups")
    order = torch.arange(shape[0], device=cov.device).view(groups, -1).T.flatten()
    return expand_pixels(cov, shape[0])[order][:, order]


@rule(nn.PixelUnshuffle, F.pixel_unshuffle)
def pixel_unshuffle(layer: Layer, cov: Tensor, settings: Settings, shape: tuple) -> Tensor:
    """Σ ⊗ I: the pixels of a block, which become channels, are independent.

    No later layer sees that they were pixels, so where the settings have all that are summed pay
    for their correlation (`multi_block`) they do it here.
    """
    _check_image(shape)
    pixels = option(layer, 1, "downscale_factor") ** 2
    spread = expand_pixels(expand_pixels(cov, shape[0]), shape[0] * pixels)
    return settings.correlation_factor(pixels) * spread if settings.multi_block else spread


@rule(nn.PixelShuffle, F.pixel_shuffle)
def pixel_shuffle(layer: Layer, cov: Tensor, settings: Settings, shape: tuple) -> Tensor:
    """Σ_ij Σ[c·r² + ij, c′·r² + ij]: the sum over the r² kinds of pixels bounds each of them.

    An average would understate some. The sum is also what a transposed convolution has that
    computes the same as a convolution of 1 × 1 followed by this.
    """
    _check_image(shape)
    pixels = option(layer, 1, "upscale_factor") ** 2
    channels = shape[0] // pixels
    blocks = expand_pixels(cov, shape[0]).reshape(channels, pixels, channels, pixels)
    return torch.diagonal(blocks, dim1=1, dim2=3).sum(-1)


def _check_image(shape: tuple) -> None:
    """torch takes the third dimension from the end for the channels."""
    if len(shape) != 3:
        raise Unsupported(
            f"of an input with {len(shape) - 1} dimensions beside batch and channels it takes "
            "another one for the channels",
            "give it images [batch, channels, height, width]",
        )
