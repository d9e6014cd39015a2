"""What is asked of a certification, before anything is sampled."""

import pytest

from covprop.certify.bounds import best_lower, certified_radius
from covprop.certify.calls import check_options
from covprop.errors import InvalidInput


def test_no_question_is_asked_by_default() -> None:
    assert check_options(0.25, 100, 1000, 0.001) is None


@pytest.mark.parametrize("delta", [None, 0.1])
def test_no_radius_at_all_is_refused(delta: float | None) -> None:
    with pytest.raises(InvalidInput, match="at_least names no radius"):
        check_options(0.25, 100, 1000, 0.001, delta=delta, at_least=[])


@pytest.mark.parametrize(("soft", "between"), [(False, 0.945), (True, 0.885)])
def test_a_radius_is_out_of_reach_where_no_look_can_certify_it(soft: bool, between: float) -> None:
    """Looks share α, so the last one certifies less than a single one of all samples would."""
    n, alpha, sigma = 100_000, 0.001, 0.25
    single = float(certified_radius(best_lower(1.0, n, alpha, soft=soft), sigma))
    assert between < single
    with pytest.raises(InvalidInput, match=r"looked at \d+ times, .* out of reach"):
        check_options(sigma, 100, n, alpha, soft=soft, at_least=between, step=256)
    check_options(sigma, 100, 200, alpha, at_least=0.45, step=256)  # one look


@pytest.mark.parametrize(("asked", "radii"), [(0.25, (0.25,)), ([0.25, 0.5], (0.25, 0.5))])
def test_one_radius_or_several(asked: float | list[float], radii: tuple[float, ...]) -> None:
    question = check_options(0.25, 100, 10_000, 0.001, at_least=asked)
    assert question is not None
    assert question.at_least == radii
    assert question.delta is None
