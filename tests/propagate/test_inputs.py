import pytest
import torch
from torch import nn

from covprop.errors import InvalidInput
from covprop.propagate.inputs import check_images, check_shape

MODEL = nn.Conv2d(2, 3, 1)


@pytest.mark.parametrize("shape", [2, (), (3, 0, 2), (3, 8.5, 8), "3,8,8"])
def test_bad_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput, match=r"input_shape is .*: give the shape of one image"):
        check_shape(shape)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(1, 2, 9, 8), r"built for \[batch, 2, 8, 8\]; .* input_shape=\(2, 9, 8\)"),
        (torch.zeros(2, 8, 8), r"has shape \[2, 8, 8\]: give a batch of images, as x\[None\]"),
        (torch.zeros(1, 2, 8, 8, dtype=torch.uint8), r"give images as torch\.float32, scaled"),
        (torch.zeros(1, 2, 8, 8, device="meta"), "is on meta and the model on cpu"),
    ],
)
def test_bad_images(x: torch.Tensor, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        check_images(x, (2, 8, 8), MODEL)


def test_what_is_right_passes() -> None:
    assert check_shape([2, 8, 8]) == (2, 8, 8)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):  # the model's own or autocast's
        check_images(torch.zeros(0, 2, 8, 8, dtype=dtype), (2, 8, 8), MODEL)
