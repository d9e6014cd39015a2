"""Theorem 2: the block diagonal bounds every joint covariance of the stated correlation."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import is_psd, random_covariance

from covprop import InvalidInput, decorrelated_bound, inflation


@given(
    st.integers(1, 4), st.integers(1, 4), st.floats(0.0, 0.95), st.floats(0.0, 1.0),
    st.floats(-1.0, 1.0), st.integers(0, 200),
)  # fmt: skip
def test_bound_minus_joint_is_psd(
    n: int, m: int, r_max: float, where: float, share: float, seed: int
) -> None:
    first, second = random_covariance(n, seed), random_covariance(m, seed + 1)
    # Canonical correlations of at most r_max: the cross-covariance is L₁ (r_max·Q) L₂ᵀ, ‖Q‖ = 1.
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(n, m, generator=generator, dtype=torch.float64)
    mix = r_max * mix / torch.linalg.matrix_norm(mix, 2)
    cross = torch.linalg.cholesky(first) @ mix @ torch.linalg.cholesky(second).T
    joint = torch.cat([torch.cat([first, cross], 1), torch.cat([cross.T, second], 1)])
    eta = 0.5 + where * (1 / (1 + r_max) - 0.5)
    limit = math.sqrt(max(0.0, (1 - 2 * eta) / (1 - r_max**2) + eta**2))
    kappa = share * min(limit, 0.999 * eta)
    bound = decorrelated_bound(first, second, r_max, eta, kappa)
    assert is_psd(bound - joint, 1e-8)


def test_default_is_one_plus_r_max() -> None:
    assert inflation(0.3) == pytest.approx((1.3, 1.3))


def test_a_smaller_factor_is_no_bound() -> None:
    """The test above can fail: below 1 + r_max a fully correlated pair escapes."""
    joint = torch.tensor([[1.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    assert not is_psd(1.4 * torch.eye(2, dtype=torch.float64) - joint)


def test_the_correlations_of_single_entries_are_not_enough() -> None:
    """Each entry has correlation 0.3 with each of the other block, but their sums have 0.6."""
    eye, cross = torch.eye(2, dtype=torch.float64), torch.full((2, 2), 0.3, dtype=torch.float64)
    joint = torch.cat([torch.cat([eye, cross], 1), torch.cat([cross, eye], 1)])
    assert not is_psd(decorrelated_bound(eye, eye, 0.3) - joint)
    assert is_psd(decorrelated_bound(eye, eye, 0.6) - joint)


@pytest.mark.parametrize(
    "bad",
    [(1.0, None, 0.0), (-0.1, None, 0.0), (0.5, 0.4, 0.0), (0.5, 0.9, 0.0), (0.5, 0.6, 0.5)],
)
def test_bad_choices(bad: tuple) -> None:
    with pytest.raises(InvalidInput):
        inflation(*bad)


def test_what_is_no_covariance_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"square, not \[3, 2\]"):
        decorrelated_bound(torch.eye(2), torch.ones(3, 2), 0.2)


def test_a_list_is_no_covariance() -> None:
    with pytest.raises(InvalidInput, match="a covariance is a tensor, not a list"):
        decorrelated_bound([[1.0]], [[1.0]], 0.5)  # type: ignore[arg-type]
