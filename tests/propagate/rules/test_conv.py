"""Convolution rules against the dense Jacobian, in float64."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import dense_covariance, is_psd, largest_block, random_covariance, relative
from torch import nn

from covprop import PAPER, Propagator, Settings
from covprop.propagate.rules.conv import conv, conv_transpose

EXACT = PAPER.but(r_max=0.0)


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[nn.Module, tuple[int, ...]]:
    dimensions = draw(st.integers(1, 3))
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    in_channels = groups * draw(st.integers(1, 2))
    out_channels = groups * draw(st.integers(1, 2))
    if draw(st.booleans()):  # depthwise
        groups, out_channels = in_channels, in_channels * draw(st.integers(1, 2))
    largest = {1: 4, 2: 3, 3: 2}[dimensions]
    kernel = tuple(draw(st.integers(1, largest)) for _ in range(dimensions))
    stride = draw(st.integers(1, 2))
    dilation = draw(st.integers(1, 2)) if dimensions < 3 else 1
    padding = draw(st.integers(0, 1))
    mode = draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"]))
    layer_type = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dimensions - 1]
    layer = layer_type(
        in_channels, out_channels, kernel, stride=stride, padding=padding, dilation=dilation,
        groups=groups, bias=draw(st.booleans()), padding_mode=mode,
    ).double()  # fmt: skip
    # Large enough that some window lies wholly inside.
    extra = 2 * padding + stride
    spatial = tuple(dilation * (k - 1) + 1 + extra for k in kernel)
    return layer, (in_channels, *spatial)


@given(convolutions(), st.integers(0, 100))
def test_conv_equals_dense_at_interior_pixel(case: tuple, seed: int) -> None:
    layer, shape = case
    cov = random_covariance(shape[0], seed)
    blocks = dense_covariance(layer, cov, shape)
    ours = conv(layer, cov, EXACT)
    errors = [relative(ours, block) for block in blocks]
    assert min(errors) < 1e-10
    if layer.padding_mode == "zeros":  # borders see fewer taps: the shared value bounds them
        assert relative(ours, largest_block(blocks)) < 1e-10
        assert all(is_psd(ours - block) for block in blocks)
    assert is_psd(ours)
    assert relative(ours, ours.T) < 1e-12


@st.composite
def transposed(draw: st.DrawFn) -> tuple[nn.Module, tuple[int, ...]]:
    dimensions = draw(st.integers(1, 3))
    groups = draw(st.integers(1, 2))
    in_channels, out_channels = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    kernel = draw(st.integers(1, 3 if dimensions < 3 else 2))
    stride = draw(st.integers(1, 2))
    layer_type = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[dimensions - 1]
    layer = layer_type(in_channels, out_channels, kernel, stride=stride, groups=groups).double()
    return layer, (in_channels, *(kernel + 1,) * dimensions)


@given(transposed(), st.integers(0, 100))
def test_transposed_conv_bounds_every_pixel_and_is_exact_at_stride_one(
    case: tuple, seed: int
) -> None:
    layer, shape = case
    cov = random_covariance(shape[0], seed)
    blocks = dense_covariance(layer, cov, shape)
    ours = conv_transpose(layer, cov, EXACT)
    assert all(is_psd(ours - block) for block in blocks)
    if layer.stride[0] == 1:
        assert relative(ours, largest_block(blocks)) < 1e-10
    else:  # every tap is in exactly one phase, so the phases sum to the bound
        assert (
            torch.diagonal(ours).sum()
            <= 1e-9 + 2 ** len(layer.stride) * torch.diagonal(largest_block(blocks)).sum()
        )


def test_factor_is_one_plus_r_max_or_counts_blocks() -> None:
    layer = nn.Conv2d(2, 3, 3).double()
    cov = random_covariance(2)
    exact = conv(layer, cov, EXACT)
    torch.testing.assert_close(conv(layer, cov, Settings(r_max=0.2)), 1.2 * exact)
    several = Settings(r_max=0.2, multi_block=True)
    torch.testing.assert_close(conv(layer, cov, several), (1 + 8 * 0.2) * exact)
    pointwise = nn.Conv2d(2, 3, 1).double()
    torch.testing.assert_close(conv(pointwise, cov, several), conv(pointwise, cov, EXACT))


def test_detached_covariance_has_no_gradient() -> None:
    layer = nn.Conv2d(2, 3, 3)
    cov = torch.eye(2)
    assert conv(layer, cov, PAPER).requires_grad
    assert not conv(layer, cov, PAPER.but(detach_covariance=True)).requires_grad


@pytest.mark.parametrize("channels_last", [False, True])
def test_memory_layout_does_not_matter(channels_last: bool) -> None:
    layer = nn.Conv2d(4, 5, 3)
    expected = conv(layer, torch.eye(4), EXACT)
    if channels_last:
        layer = layer.to(memory_format=torch.channels_last)
    torch.testing.assert_close(conv(layer, torch.eye(4), EXACT), expected)


@pytest.mark.parametrize("layer", [nn.Conv2d(24, 3, 1), nn.ConvTranspose2d(24, 3, 1)])
def test_a_flattened_image_as_channels(layer: nn.Module) -> None:
    """A head of 1×1 convolutions on what was flattened: every feature is a channel of its own."""
    model = nn.Sequential(nn.Conv2d(2, 6, 1), nn.Flatten(), nn.Unflatten(1, (24, 1, 1)), layer)
    model.append(nn.Flatten()).double()
    ours = Propagator(model, 0.5, (2, 2, 2), EXACT)(torch.zeros(1, 2, 2, 2).double()).cov
    eye = 0.25 * torch.eye(2, dtype=torch.float64)
    assert relative(ours, dense_covariance(model, eye, (2, 2, 2))[0]) < 1e-10
