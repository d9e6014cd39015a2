"""Whether an image's logits depend on the rest of its batch: rounding and chance do not count."""

import random

import pytest
import torch
from torch import Tensor

from covprop.errors import InvalidInput
from covprop.independence import batch_with, check_independence


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_what_moves_by_more_than_rounding_depends_on_its_batch(scale: float) -> None:
    logits = torch.tensor([1.0, -2.0, 0.5]) * scale

    def moved(by: float) -> None:
        check_independence(lambda pixel, rows: logits * (1 + by * pixel))

    moved(0.0)
    moved(1e-5)
    for by in (0.01, -0.5, 10.0):
        with pytest.raises(InvalidInput, match="what else is in the batch"):
            moved(by)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_what_moves_with_the_size_of_the_batch_depends_on_it(scale: float) -> None:
    """By more than the rounding of other kernels, which in half precision is some percent."""
    logits = torch.tensor([1.0, -2.0, 0.5]) * scale
    asked: list[int] = []

    def moved(by: float) -> None:
        def of(pixel: float, rows: int) -> Tensor:
            asked.append(rows)
            return logits * (1 + by * rows)

        check_independence(of)

    moved(0.0)
    moved(1e-4)
    assert asked == [2, 3, 2, 3]  # no pass more than one needs for the batch itself
    moved(0.04)
    for by in (0.3, -0.5, 10.0):
        with pytest.raises(InvalidInput, match="or on how many images are"):
            moved(by)


def test_rounding_by_size_does_not_hide_the_content() -> None:
    logits = torch.tensor([1.0, -2.0, 0.5])
    with pytest.raises(InvalidInput, match="what else is in the batch"):
        check_independence(lambda pixel, rows: logits * (1 + 0.01 * pixel + 0.01 * rows))


def test_random_logits_are_not_taken_for_dependence_on_the_batch() -> None:
    """Four random answers fit dependence in one of eight cases: it takes more to be sure."""
    rng = random.Random(0)

    def either(pixel: float, rows: int) -> Tensor:
        return torch.tensor([1.0, float(rng.randrange(2))])

    for _ in range(300):
        check_independence(either)


def test_the_other_images_have_a_mean_and_a_shape() -> None:
    """What takes away a mean, of all pixels or of each image, must not make two of them one."""
    image = torch.rand(3, 4, 5)
    dark, light = (batch_with(image, brightness, rows=3) for brightness in (0.0, 2.0))
    assert torch.equal(dark[0], image)
    assert torch.equal(light[0], image)
    assert dark.shape == light.shape == (3, 3, 4, 5)
    assert not dark[1:].any()
    assert (light[1:].mean((2, 3)) > 0.1).all()
    assert (light[1:].std((2, 3)) > 0.1).all()
