"""What `exhibits` is handed: taken as it is meant, or one sentence."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from covprop.errors import InvalidInput
from covprop.inspect import exhibits, write
from covprop.inspect.figures import Exhibit

X, Y = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)), [0, 3]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4))


def shown(part: str, x: Any = X, labels: Any = Y, **options: Any) -> Exhibit:
    given = {"samples": 20, "n": 200, "parts": (part,), **options}
    (one,) = exhibits(network(), x, labels, 0.2, **given)
    return one


@pytest.mark.parametrize("part", ["layers", "last-layer"])
@pytest.mark.parametrize(
    ("x", "sentence"),
    [
        (255 * X, r"must lie in \[0, 1\], .* span \[.*, 25\d.*; scale .* layer of the model\.$"),
        (X - 0.5, r"must lie in \[0, 1\]"),
        (X * torch.nan, "hold NaN"),
        (X[:0], r"\[0, 1, 8, 8\]: give float images .* at least one"),
        (X[0], r"\[1, 8, 8\]: give float images \[b, c, h, w\]"),
        ((255 * X).byte(), "uint8 .* give float images"),
        (X.numpy(), "x is a ndarray: give a tensor"),
        (X.to("meta"), "meta"),
    ],
)
def test_images_that_are_none(part: str, x: Any, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence) as caught:
        shown(part, x)
    assert "value_range" not in str(caught.value)  # which exhibits does not take


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        ([0, -1], r"label -1 of image 1 is outside 0\.\.3"),
        ([0, 4], r"label 4 of image 1 is outside 0\.\.3"),
        ([0], r"shape \[1\] .* for 2 images"),
        ([0, 1, 2], r"shape \[3\] .* for 2 images"),
        ([0.0, 1.0], "float32 .* class numbers"),
        (None, "NoneType.: give the class number of each of the 2 images"),
        ("ab", "str.: give the class number of each"),
    ],
)
def test_labels_that_are_none(labels: Any, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        shown("last-layer", labels=labels)


@pytest.mark.parametrize("labels", [torch.tensor(Y), np.array(Y), tuple(Y)])
def test_labels_of_any_kind(labels: Any) -> None:
    found = shown("last-layer", labels=labels, images=[1], classes="abcd")
    assert found.rows[0][:2] == (1, "d")


def test_labels_are_asked_for_only_where_they_are_shown() -> None:
    assert shown("layers", labels=None).name == "layers"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"classes": ["a"]}, "1 names and the model 4 classes: give a name for each"),
        ({"classes": "abcde"}, "5 names and the model 4 classes"),
        ({"indices": [1]}, "2 images need 2 indices, not 1"),
        ({"images": []}, "at least one position"),
        ({"images": [0.5]}, "no image 0.5: 2 are at hand"),
        ({"images": [-1]}, "no image -1: 2 are at hand"),
    ],
)
def test_names_and_positions_that_do_not_fit(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        shown("last-layer", **options)


@pytest.mark.parametrize("images", [torch.tensor([1]), np.array([1])])
def test_positions_of_any_kind(images: Tensor | np.ndarray) -> None:
    assert shown("last-layer", images=images, indices=[7, 9]).rows[0][0] == 9


def test_logits_that_share_a_channel_are_all_classes() -> None:
    """Eight logits of two channels, which share one covariance until they are flattened."""
    model = nn.Sequential(nn.Conv2d(1, 2, 7), nn.Flatten())
    (found,) = exhibits(model, X, [7, 0], 0.2, n=200, images=[0], parts=["last-layer"])
    assert found.rows[0][1] == "7"


def test_one_part_and_a_folder_as_plain_words(tmp_path: Path) -> None:
    files = write([shown("layers", parts="layers")], str(tmp_path / "new"))
    assert tmp_path / "new" / "inspect.html" in files
    assert all(file.is_file() for file in files)
