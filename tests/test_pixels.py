"""The scale that σ is measured on."""

import numpy as np
import pytest
import torch

from covprop.errors import InvalidInput
from covprop.pixels import check_range, check_sigma


def test_pixels_on_another_scale_are_refused() -> None:
    for values in ([0.0, 255.0], [-1.0, 1.0]):
        x = torch.tensor(values)
        with pytest.raises(InvalidInput, match=r"must lie in \[0, 1\], the scale sigma") as caught:
            check_range(x, (0.0, 1.0))
        assert str(caught.value).endswith(
            ", or pass value_range=None if sigma is meant on the scale they have."
        )
        check_range(x, None)
    check_range(torch.tensor([0.0, 1.0]), (0.0, 1.0))
    check_range(torch.tensor([0.0, 1.0]), (np.float32(0), np.int64(1)))
    check_range(torch.empty(0, 3), (0.0, 1.0))


def test_images_that_are_no_numbers_are_called_so() -> None:
    with pytest.raises(InvalidInput, match="hold NaN"):
        check_range(torch.tensor([0.5, float("nan")]), (0.0, 1.0))


@pytest.mark.parametrize("wrong", [(0,), 1.0, "01", (0, "1"), (0, 1, 2)])
def test_a_range_that_is_none(wrong: object) -> None:
    with pytest.raises(InvalidInput, match=r"value_range is .*: give two numbers"):
        check_range(torch.tensor([0.5]), wrong)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("error")
def test_images_that_want_a_gradient() -> None:
    check_range(torch.tensor([0.0, 1.0], requires_grad=True), (0.0, 1.0))


@pytest.mark.parametrize("sigma", [0.0, -1.0, float("nan"), float("inf"), None, "a", "0.5"])
def test_bad_sigma(sigma: float) -> None:
    with pytest.raises(InvalidInput, match=f"sigma is {sigma}: give a positive"):
        check_sigma(sigma)


def test_what_is_no_sigma_at_all_is_named_by_its_kind() -> None:
    with pytest.raises(InvalidInput, match=r"^sigma is a Linear: give a positive"):
        check_sigma(torch.nn.Linear(2, 2))  # type: ignore[arg-type]


def test_sigma_is_a_float() -> None:
    given = check_sigma(torch.tensor(0.5)), check_sigma(1)  # type: ignore[arg-type]
    assert given == (0.5, 1.0)
    assert all(type(sigma) is float for sigma in given)
