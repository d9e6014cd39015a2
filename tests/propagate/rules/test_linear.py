"""Linear rules against the dense Jacobian."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import dense_covariance, random_covariance, relative
from torch import nn

from covprop import PAPER, Propagator
from covprop.propagate.rules.linear import linear

EXACT = PAPER.but(r_max=0.0)


@given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 5), st.integers(0, 50))
def test_first_linear_after_spatial_layers(
    channels: int, pixels: int, outputs: int, seed: int
) -> None:
    layer = nn.Sequential(nn.Flatten(), nn.Linear(channels * pixels, outputs)).double()
    cov = random_covariance(channels, seed)
    (expected,) = dense_covariance(layer, cov, (channels, pixels))
    ours = linear(layer[1], cov, PAPER, shape=(channels * pixels,))  # no factor on one pixel
    assert relative(ours, expected) < 1e-10


@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 50))
def test_later_linear(features: int, outputs: int, seed: int) -> None:
    layer = nn.Linear(features, outputs).double()
    cov = random_covariance(features, seed)
    ours = linear(layer, cov, PAPER, shape=(features,))
    expected = layer.weight @ cov @ layer.weight.T
    assert relative(ours, expected) < 1e-12


def test_multi_block_pays_for_correlated_pixels() -> None:
    layer = nn.Linear(8, 3).double()
    cov = random_covariance(2)
    plain = linear(layer, cov, EXACT, shape=(8,))
    several = linear(layer, cov, PAPER.but(r_max=0.5, multi_block=True), shape=(8,))
    torch.testing.assert_close(several, (1 + 3 * 0.5) * plain)


def test_matmul_with_a_parameter() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten(1) @ self.weight

    model = Net().double()
    out = Propagator(model, 0.5, (6, 1, 1))(torch.zeros(1, 6, 1, 1, dtype=torch.float64))
    assert relative(out.cov, 0.25 * model.weight.T @ model.weight) < 1e-12
