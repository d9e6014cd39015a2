import numpy as np
import pytest
import torch
from torch import nn

from covprop import Normalize, Propagator, ibp, margin
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
        (np.zeros((1, 2, 8, 8)), r"x is a ndarray; give a tensor, as by torch\.as_tensor\(x\)"),
        (torch.zeros(1, 2, 8, 8).to_sparse(), r"a sparse tensor; give x\.to_dense\(\)"),
        ([0.0], "x is a list; give a tensor"),
        (None, "x is a NoneType; give a tensor"),
    ],
)
def test_bad_images(x: torch.Tensor, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        check_images(x, (2, 8, 8), MODEL)


def test_what_is_right_passes() -> None:
    assert check_shape([2, 8, 8]) == (2, 8, 8)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):  # the model's own or autocast's
        check_images(torch.zeros(0, 2, 8, 8, dtype=dtype), (2, 8, 8), MODEL)


@pytest.mark.parametrize(
    ("of_model", "of_images"),
    [
        (torch.float64, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float64),
        (torch.float32, torch.bfloat16),
    ],
)
def test_images_of_another_type_are_one_sentence(
    of_model: torch.dtype, of_images: torch.dtype
) -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 1), nn.Flatten(), nn.Linear(12, 2)).to(of_model)
    prop = Propagator(model, 0.25, (2, 2, 2), calibrated=True)
    x = torch.rand(2, 2, 2, 2, dtype=of_images)
    for use in (prop, prop.calibrate, prop.measure_r_max):
        with pytest.raises(
            InvalidInput, match=f"the input is {of_images} and the model {of_model}"
        ):
            use(x)


def test_images_of_another_type_pass_where_something_casts_them() -> None:
    x = torch.rand(2, 2, 2, 2, dtype=torch.float64)
    model = nn.Sequential(nn.Flatten(), nn.Linear(8, 2))
    prop = Propagator(model, 0.25, (2, 2, 2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(prop(x.bfloat16()).mean, prop(x.float()).mean)
    wide = Propagator(
        nn.Sequential(Normalize([0.5] * 2, [0.2] * 2), model).double(), 0.25, (2, 2, 2)
    )
    torch.testing.assert_close(wide(x.float()).mean, wide(x.float().double()).mean)


class Squeezed(nn.Module):
    """Takes a batch of one for one more dimension to leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(2, 3, 4), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.conv(x).squeeze())


def test_a_batch_of_one_that_forward_squeezes_is_one_sentence() -> None:
    """The propagator gave a mean without images, and the dense estimator an IndexError."""
    model, x = Squeezed(), torch.rand(2, 2, 4, 4)
    prop = Propagator(model, 0.5, (2, 4, 4))
    assert prop(x).mean.shape == (2, 3)
    assert ibp(model, x, 0.1).lower.shape == (2, 3)
    message = r"^Squeezed must return one tensor of logits .* a batch of 1 it returned \[3\]"
    with pytest.raises(InvalidInput, match=message):
        prop(x[:1])
    with pytest.raises(InvalidInput, match=message):
        ibp(model, x[:1], 0.1)
    with pytest.raises(InvalidInput, match=message):
        margin(model, x, 0.5, "dense")  # image by image


@pytest.mark.parametrize("given", [torch.zeros(3, 8, 8), MODEL])
def test_what_is_no_shape_at_all_is_not_printed_whole(given: object) -> None:
    with pytest.raises(InvalidInput, match=r"^input_shape is a (Tensor|Conv2d): give the shape"):
        check_shape(given)  # type: ignore[arg-type]


@pytest.mark.parametrize("samples", [True, torch.tensor(2.5), torch.tensor(4)])
def test_neither_true_nor_a_tensor_is_a_number_of_samples(samples: object) -> None:
    with pytest.raises(InvalidInput, match=r"^samples is .*: give a whole number"):
        margin(nn.Flatten(), torch.rand(1, 1, 2, 2), 0.5, samples=samples)
