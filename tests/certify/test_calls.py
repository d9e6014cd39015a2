"""What is asked of a certification, before anything is sampled."""

import pytest

from covprop.certify.calls import check_options
from covprop.errors import InvalidInput


def test_no_question_is_asked_by_default() -> None:
    assert check_options(0.25, 100, 1000, 0.001) is None


@pytest.mark.parametrize("delta", [None, 0.1])
def test_no_radius_at_all_is_refused(delta: float | None) -> None:
    with pytest.raises(InvalidInput, match="at_least names no radius"):
        check_options(0.25, 100, 1000, 0.001, delta=delta, at_least=[])


@pytest.mark.parametrize(("asked", "radii"), [(0.25, (0.25,)), ([0.25, 0.5], (0.25, 0.5))])
def test_one_radius_or_several(asked: float | list[float], radii: tuple[float, ...]) -> None:
    question = check_options(0.25, 100, 10_000, 0.001, at_least=asked)
    assert question is not None
    assert question.at_least == radii
    assert question.delta is None
