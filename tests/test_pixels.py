"""The scale that σ is measured on."""

import numpy as np
import pytest
import torch

from covprop import margin
from covprop.errors import InvalidInput
from covprop.pixels import SIGMAS, check_range, check_sigma


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


@pytest.mark.parametrize(
    "sigma", [0.0, -1.0, float("nan"), float("inf"), None, "a", "0.5", 9e-7, 1e-30, 1.1e6, 1e300]
)
def test_bad_sigma(sigma: float) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_sigma(sigma)
    assert str(caught.value) == (
        f"sigma is {sigma}: give a positive standard deviation (pixel scale), at least 1e-06 and "
        "at most 1e+06."
    )


def test_what_is_no_sigma_at_all_is_named_by_its_kind() -> None:
    with pytest.raises(InvalidInput, match=r"^sigma is a Linear: give a positive"):
        check_sigma(torch.nn.Linear(2, 2))  # type: ignore[arg-type]


@pytest.mark.parametrize(("sigma", "of_noise", "of_image"), [(1e-6, 0.02, 1e-6), (1e6, 1e-6, 0.1)])
def test_float32_holds_image_and_noise_of_every_sigma(
    sigma: float, of_noise: float, of_image: float
) -> None:
    assert check_sigma(sigma) == sigma
    x, noise = torch.rand(10_000), sigma * torch.randn(10_000)
    lost = (x + noise).double() - x.double() - noise.double()
    assert lost.std() < of_noise * sigma
    assert lost.std() < of_image * x.std()


@pytest.mark.parametrize("estimator", ["shared", "linearized", "dense"])
@pytest.mark.parametrize("sigma", [SIGMAS.low, SIGMAS.high])
def test_an_estimate_of_a_linear_network_is_right_for_every_sigma(
    estimator: str, sigma: float
) -> None:
    """At 1e-30 and 1e30 it was infinite, NaN or 0, without a word."""
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    x = torch.rand(5, 1, 2, 2)
    found = margin(model, x, sigma, estimator)
    weight = model[1].weight.double()
    slopes = weight[found.top] - weight[found.runner_up]
    expected = found.mean.double() / slopes.norm(dim=1)
    torch.testing.assert_close(found.radius.double(), expected, rtol=1e-4, atol=0)


def test_sigma_is_a_float() -> None:
    given = check_sigma(torch.tensor(0.5)), check_sigma(1)  # type: ignore[arg-type]
    assert given == (0.5, 1.0)
    assert all(type(sigma) is float for sigma in given)
