"""Settings: presets differ in named fields only, bad values are one sentence."""

import dataclasses

import pytest

from covprop import PAPER, REFERENCE, InvalidInput, Settings


def test_presets_differ_where_the_authors_code_differs_from_the_text() -> None:
    different = {
        field.name
        for field in dataclasses.fields(Settings)
        if getattr(PAPER, field.name) != getattr(REFERENCE, field.name)
    }
    assert different == {
        "r_max", "detach_covariance", "relu_floor", "scale_overlapping_pool",
        "margin_covariance", "hinge_in_sigma", "soft_term", "noisy_mean",
    }  # fmt: skip


def test_factor() -> None:
    assert Settings(r_max=0.1).correlation_factor(9) == pytest.approx(1.1)
    assert Settings(r_max=0.1, multi_block=True).correlation_factor(9) == pytest.approx(1.8)
    assert Settings(r_max=0.1, multi_block=True).correlation_factor(1) == 1.0


def test_r_max_for_each_layer() -> None:
    settings = Settings(r_max={"conv1": 0.3})
    assert settings.of_layer("conv1").r_max == 0.3
    assert settings.of_layer("conv2").r_max == 0.0


@pytest.mark.parametrize(
    "bad",
    [
        {"r_max": -0.1}, {"r_max": 1.5}, {"r_max": "guessed"}, {"r_max": {"a": 2.0}},
        {"r_max": float("nan")}, {"margin_covariance": "product"}, {"relu_floor": -1.0},
        {"quadrature_nodes": 1}, {"products": "float16"}, {"multi_block": "no"}, {"offset": "a"},
        {"quadrature_nodes": 2.5}, {"r_max": None}, {"soft_term": 1},
    ],
)  # fmt: skip
def test_bad_values(bad: dict) -> None:
    with pytest.raises(InvalidInput, match=next(iter(bad))):
        Settings(**bad)


def test_a_mistyped_field() -> None:
    with pytest.raises(InvalidInput, match='no setting "rmax"'):
        PAPER.but(rmax=0.1)


def test_a_word_in_a_mapping_is_no_correlation() -> None:
    with pytest.raises(InvalidInput, match="a correlation bound lies in"):
        PAPER.but(r_max={"conv": "0.1"})
