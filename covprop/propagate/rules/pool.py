"""Average pooling and spatial means: pixels are independent, so a mean of n divides Σ by n."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covprop.layers import per_dimension
from covprop.propagate.registry import Call, Layer, Unsupported, kind, option, rule
from covprop.propagate.settings import Settings


def pooled(cov: Tensor, scale: float, window: int, overlapping: bool, settings: Settings) -> Tensor:
    """Σ after a pool: times the largest Σ_i w_i² over windows, times the correlation factor.

    Only overlapping windows correlate the outputs of a pool; with `multi_block` the pixels that
    are summed may be correlated themselves, so every pool pays.
    """
    if overlapping and not settings.scale_overlapping_pool:
        return cov
    pays = overlapping or (settings.multi_block and window > 1)
    return cov * scale * (settings.correlation_factor(window) if pays else 1.0)


def largest_weight(
    size: int, kernel: int, stride: int, padding: int, out: int, include_pad: bool
) -> float:
    """max over windows of (real pixels)/(divisor)² along one dimension."""
    largest = 0.0
    for position in range(out):
        start = position * stride - padding
        divisor = min(start + kernel, size + padding) - start
        real = min(start + kernel, size) - max(start, 0)
        largest = max(largest, real / divisor**2 if include_pad else 1.0 / max(real, 1))
    return largest


AVERAGE: dict[Any, int] = {
    **{nn.AvgPool1d: 1, nn.AvgPool2d: 2, nn.AvgPool3d: 3},
    **{F.avg_pool1d: 1, F.avg_pool2d: 2, F.avg_pool3d: 3},
}
ADAPTIVE: dict[Any, int] = {
    **{nn.AdaptiveAvgPool1d: 1, nn.AdaptiveAvgPool2d: 2, nn.AdaptiveAvgPool3d: 3},
    **{F.adaptive_avg_pool1d: 1, F.adaptive_avg_pool2d: 2, F.adaptive_avg_pool3d: 3},
}
"""How many dimensions a pool takes averages over: the last ones of its input."""


def check_dimensions(layer: Layer, shape: tuple, pools: dict[Any, int]) -> None:
    """With fewer dimensions than pixels have, a pool averages over channels or images too."""
    kinds = (layer.function,) if isinstance(layer, Call) else kind(layer).__mro__
    wanted = next(pools[one] for one in kinds if one in pools)
    if len(shape) - 1 != wanted:
        raise Unsupported(
            f"it averages over {wanted} dimension{'s' * (wanted > 1)} of an input with "
            f"{len(shape) - 1} beside batch and channels",
            "pool before flattening, with a pool of as many dimensions as the image",
        )


@rule(*AVERAGE)
def avg_pool(
    layer: Layer, cov: Tensor, settings: Settings, shape: tuple, out_shape: tuple
) -> Tensor:
    """Σ · max over windows of Σ_i w_i²: Σ/kᵈ for windows that fit.

    Windows that hang over the border average fewer pixels; the window with the largest variance
    sets the shared value. Windows that overlap correlate their outputs, as a convolution does.
    """
    check_dimensions(layer, shape, AVERAGE)
    dimensions = len(shape) - 1
    kernel = per_dimension(option(layer, 1, "kernel_size"), dimensions)
    stride = per_dimension(option(layer, 2, "stride") or kernel, dimensions)
    padding = per_dimension(option(layer, 3, "padding", 0), dimensions)
    include_pad = option(layer, 5, "count_include_pad", True)
    one_dimensional = isinstance(layer, nn.AvgPool1d)
    override = None if one_dimensional else option(layer, 6, "divisor_override")
    window = math.prod(kernel)
    if override:
        scale = window / override**2
    else:
        sizes = zip(shape[1:], kernel, stride, padding, out_shape[1:], strict=True)
        scale = math.prod([largest_weight(*size, include_pad) for size in sizes])
    overlapping = any(
        s < k and out > 1 for s, k, out in zip(stride, kernel, out_shape[1:], strict=True)
    )
    return pooled(cov, scale, window, overlapping, settings)


@rule(*ADAPTIVE)
def adaptive_avg_pool(
    layer: Layer, cov: Tensor, settings: Settings, shape: tuple, out_shape: tuple
) -> Tensor:
    """Σ/(smallest window): output cell i averages pixels ⌊i·n/m⌋ to ⌈(i+1)·n/m⌉."""
    check_dimensions(layer, shape, ADAPTIVE)
    counts = [
        min(-(-(i + 1) * size // out) - i * size // out for i in range(out))
        for size, out in zip(shape[1:], out_shape[1:], strict=True)
    ]
    window = math.prod(counts)
    overlapping = any(size % out != 0 for size, out in zip(shape[1:], out_shape[1:], strict=True))
    return pooled(cov, 1.0 / window, window, overlapping, settings)


def summed_pixels(call: Call, shape: tuple) -> int:
    """How many pixels x.mean(dims) or x.sum(dims) gathers; only spatial dimensions may go."""
    dims = call.get(1, "dim", call.kwargs.get("axis"))
    ndim = len(shape) + 1
    dims = () if dims is None else (dims,) if isinstance(dims, int) else tuple(dims)
    dims = tuple(dim % ndim for dim in dims)
    if not dims or 0 in dims:
        raise Unsupported(
            "it reduces over the batch, so an image's logits would depend on the others",
            "use nn.BatchNorm, which keeps its statistics, or reduce over spatial dimensions only",
        )
    if 1 in dims:
        raise Unsupported("it reduces over the channels", "reduce over spatial dimensions only")
    return math.prod([shape[dim - 1] for dim in dims])


@rule(torch.mean, torch.Tensor.mean)
def mean(call: Call, cov: Tensor, settings: Settings, shape: tuple) -> Tensor:
    """Σ/n over n pixels."""
    count = summed_pixels(call, shape)
    return pooled(cov, 1.0 / count, count, False, settings)


@rule(torch.sum, torch.Tensor.sum)
def total(call: Call, cov: Tensor, settings: Settings, shape: tuple) -> Tensor:
    """n Σ over n pixels."""
    count = summed_pixels(call, shape)
    return pooled(cov, float(count), count, False, settings)
