"""Pooling rules against the dense Jacobian: the shared value bounds every window, and is met."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import dense_covariance, is_psd, largest_block, random_covariance, relative
from torch import nn

from covprop import PAPER, Settings, UnsupportedModel, check
from covprop.propagate.rules.pool import adaptive_avg_pool, avg_pool

EXACT = PAPER.but(r_max=0.0)


def out_shape(layer: nn.Module, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(layer(torch.zeros(1, *shape)).shape[1:])


@given(
    st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(0, 1), st.booleans(),
    st.booleans(), st.integers(4, 6), st.integers(0, 9),
)  # fmt: skip
def test_avg_pool_any_window(
    dimensions: int, kernel: int, stride: int, padding: int, ceil: bool, include: bool, size: int,
    seed: int,
) -> None:  # fmt: skip
    size = size if dimensions < 3 else 4
    padding = min(padding, kernel // 2)
    options: dict[str, Any] = {"ceil_mode": ceil, "count_include_pad": include}
    layer = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)[dimensions - 1](
        kernel, stride, padding, **options
    )
    shape = (2, *(size,) * dimensions)
    cov = random_covariance(2, seed)
    ours = avg_pool(layer, cov, EXACT, shape, out_shape(layer, shape))
    blocks = dense_covariance(layer, cov, shape)
    assert relative(ours, largest_block(blocks)) < 1e-10
    assert all(is_psd(ours - block) for block in blocks)


@given(st.integers(1, 3), st.integers(1, 7), st.integers(1, 7), st.integers(0, 9))
def test_adaptive_pool_any_size(dimensions: int, size: int, out: int, seed: int) -> None:
    size, out = (size, out) if dimensions < 3 else (min(size, 4), min(out, 4))
    layer = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)[dimensions - 1](out)
    shape = (2, *(size,) * dimensions)
    cov = random_covariance(2, seed)
    ours = adaptive_avg_pool(layer, cov, EXACT, shape, (2, *(out,) * dimensions))
    blocks = dense_covariance(layer, cov, shape)
    assert relative(ours, largest_block(blocks)) < 1e-10


def test_divisor_override() -> None:
    layer = nn.AvgPool2d(2, divisor_override=3)
    cov = random_covariance(2)
    ours = avg_pool(layer, cov, EXACT, (2, 4, 4), (2, 2, 2))
    assert relative(ours, dense_covariance(layer, cov, (2, 4, 4))[0]) < 1e-12


def test_only_overlapping_windows_pay_the_factor() -> None:
    cov = random_covariance(2)
    settings = Settings(r_max=0.3)
    apart = avg_pool(nn.AvgPool2d(2), cov, settings, (2, 4, 4), (2, 2, 2))
    torch.testing.assert_close(apart, cov / 4)
    alone = avg_pool(nn.AvgPool2d(4, 1), cov, settings, (2, 4, 4), (2, 1, 1))
    torch.testing.assert_close(alone, cov / 16)  # a single window overlaps with none
    over = avg_pool(nn.AvgPool2d(3, 1), cov, settings, (2, 5, 5), (2, 3, 3))
    torch.testing.assert_close(over, 1.3 * cov / 9)
    left_alone = settings.but(scale_overlapping_pool=False)
    assert avg_pool(nn.AvgPool2d(3, 1), cov, left_alone, (2, 5, 5), (2, 3, 3)) is cov
    several = settings.but(multi_block=True)
    ours = avg_pool(nn.AvgPool2d(2), cov, several, (2, 4, 4), (2, 2, 2))
    torch.testing.assert_close(ours, (1 + 3 * 0.3) * cov / 4)


class Reduce(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        match self.how:
            case "mean":
                return x.mean((2, 3))
            case "one by one":
                return x.mean(-1).mean(-1)
            case "sum":
                return x.sum(dim=(-2, -1))
            case "axis":
                return torch.mean(x.sum(axis=3), axis=2)  # type: ignore[call-overload]
            case "keep":
                return x.mean((2, 3), keepdim=True).flatten(1)
            case _:
                return x.mean(1).flatten(1)


@pytest.mark.parametrize("how", ["mean", "one by one", "sum", "axis", "keep"])
def test_spatial_reductions(how: str) -> None:
    from covprop import Propagator

    out = Propagator(Reduce(how), 0.5, (3, 4, 5))(torch.zeros(1, 3, 4, 5, dtype=torch.float64))
    (expected,) = dense_covariance(Reduce(how), 0.25 * torch.eye(3, dtype=torch.float64), (3, 4, 5))
    assert relative(out.cov, expected) < 1e-10


def test_reduction_over_channels_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="it reduces over the channels;"):
        check(Reduce("channels"), (3, 4, 5))


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.AvgPool1d(2)),
        nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.AdaptiveAvgPool1d(3)),
        nn.Sequential(nn.Flatten(2), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 3)),
    ],
)
def test_a_pool_over_more_than_pixels_is_refused(model: nn.Module) -> None:
    """Over channels or images it mixes what Σ keeps apart."""
    with pytest.raises(UnsupportedModel, match=r"averages over \d dimensions? of an input with"):
        check(model, input_shape=(4, 4, 4))


def test_a_shipped_rule_serves_a_subclass() -> None:
    class Own(nn.AvgPool2d):
        pass

    own = avg_pool(Own(2), torch.eye(3), EXACT, (3, 4, 4), (3, 2, 2))
    torch.testing.assert_close(own, torch.eye(3) / 4)
