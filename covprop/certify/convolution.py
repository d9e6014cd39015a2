"""Convolutions with what follows them in one kernel, as operators that a compiler leaves whole.

In half precision on a GPU by cuDNN, and by a kernel of our own where there are so few input
channels that cuDNN pads them; else in torch's own steps. What comes out lies channels last,
whatever went in: a compiler must know beforehand.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from covprop.kernels import HAVE_TRITON

CHANNELS, INPUTS = 4, 32  # at most, of a layer of few channels: channels, and numbers in a patch


def is_few(weight: Tensor, dilation: list[int], groups: int) -> bool:
    """Whether a patch of the input fits into one step of a matrix product."""
    few = weight.ndim == 4 and weight.shape[1] <= CHANNELS and weight[0].numel() <= INPUTS
    return few and groups == 1 and all(step == 1 for step in dilation)


def _last(y: Tensor) -> Tensor:
    return y.contiguous(memory_format=torch.channels_last)


def _is_half(x: Tensor) -> bool:
    return x.is_cuda and x.dtype.itemsize == 2


def _by_triton(x: Tensor) -> bool:
    return HAVE_TRITON and _is_half(x)


@torch.library.custom_op("covprop::conv_relu", mutates_args=())
def conv_relu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    add: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """max(conv(x) + bias + add, 0)."""
    if add is None and is_few(weight, dilation, groups) and _by_triton(x):
        from covprop.certify import triton_first

        return triton_first.convolve(x, weight, bias, stride, padding, relu=True)[0]
    where = stride, padding, dilation, groups
    if _is_half(x) and add is None:
        return _last(torch.cudnn_convolution_relu(x, weight, bias, *where))
    if _is_half(x) and add is not None:
        return _last(torch.cudnn_convolution_add_relu(x, weight, add, 1.0, bias, *where))
    y = F.conv2d(x, weight, bias, *where)
    return _last(F.relu(y if add is None else y + add))


@conv_relu.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, add: Tensor | None, *where: Any) -> Tensor:
    return _last(F.conv2d(x, weight, bias, *where))


@torch.library.custom_op("covprop::first_conv", mutates_args=())
def first_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    factor: Tensor,
    offset: Tensor,
    stride: list[int],
    padding: list[int],
) -> tuple[Tensor, Tensor]:
    """y = conv(x) + bias of few channels, and max(y·factor + offset, 0) beside it."""
    if _by_triton(x):
        from covprop.certify import triton_first

        return triton_first.convolve(x, weight, bias, stride, padding, scaled=(factor, offset))
    y = _last(F.conv2d(x, weight, bias, stride, padding))
    scaled = y * factor.view(-1, 1, 1) + offset.view(-1, 1, 1)
    return y, F.relu(scaled).to(y.dtype)


@first_conv.register_fake
def _(
    x: Tensor, weight: Tensor, bias: Tensor, factor: Tensor, offset: Tensor, *where: Any
) -> tuple[Tensor, Tensor]:
    y = _last(F.conv2d(x, weight, bias, *where))
    return y, torch.empty_like(y)
