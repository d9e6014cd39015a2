"""Checks of what a caller gives, before any sample is drawn: options, images, labels, a network."""

import operator
from collections.abc import Sequence
from numbers import Real
from typing import SupportsIndex

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from covprop.certify.bounds import Question, certified_radius, looks, most_lower
from covprop.device import choose_device
from covprop.errors import InvalidInput
from covprop.logits import Classifier
from covprop.options import is_whole
from covprop.pixels import check_range, check_sigma


def check_options(
    sigma: float,
    n0: int,
    n: int,
    alpha: float,
    *,
    soft: bool = False,
    delta: float | None = None,
    at_least: float | Sequence[float] | None = None,
    step: int = 1,
) -> Question | None:
    """Refuse impossible options; returns the question of a sequential certificate, if it is one.

    `step` is how many samples come at a time, on which it depends when counts are looked at.
    """
    check_sigma(sigma)
    if not isinstance(alpha, Real) or not 0 < alpha < 1:
        raise InvalidInput(f"alpha is a probability between 0 and 1, not {alpha!r}")
    if not (is_whole(n0) and is_whole(n)):
        raise InvalidInput(
            f"samples are counted in whole numbers, not n0 = {n0!r} and n = {n!r}; "
            "write 1000 for 1e3"
        )
    if n < 1 or n0 < 1:
        raise InvalidInput(f"at least one sample is needed, not n0 = {n0} and n = {n}")
    if delta is None and at_least is None:
        return None
    if delta is not None and not isinstance(delta, Real):
        raise InvalidInput(f"delta is a radius, not {delta!r}")
    asked = () if at_least is None else _radii(at_least)
    if at_least is not None and not len(asked):
        raise InvalidInput("at_least names no radius; leave it out, or give one or several")
    plan = looks(n, alpha, sequential=True, step=step)
    largest = float(certified_radius(most_lower(plan, soft=soft), sigma))
    for radius in asked:
        if radius > largest:
            times = f"{len(plan.sizes)} time{'s' * (len(plan.sizes) > 1)}"
            raise InvalidInput(
                f"n = {n} samples, looked at {times}, certify a radius of {largest:.4g} at most, "
                f"so at_least = {radius:g} is out of reach; take more samples"
            )
    return Question(delta=delta, at_least=tuple(float(radius) for radius in asked))


def _radii(at_least: float | Sequence[float]) -> NDArray[np.float64]:
    try:
        radii = np.atleast_1d(np.asarray(at_least, dtype=float))
    except (TypeError, ValueError):
        radii = np.empty((0, 0))
    if radii.ndim > 1:
        raise InvalidInput(f"at_least is a radius, or several in a list, not {at_least!r}")
    return radii


def check_images(x: Tensor, value_range: tuple[float, float] | None) -> None:
    """Refuse anything but images, and images on another scale than σ."""
    if not isinstance(x, Tensor):
        raise InvalidInput(f"x is a {type(x).__name__}; give a tensor, as by torch.as_tensor(x)")
    if x.ndim not in (3, 4) or not x.dtype.is_floating_point:
        rows = "; rows of n numbers go in as [b, n, 1, 1], into a model that begins with nn.Flatten"
        raise InvalidInput(
            f"x must be float images [c, h, w] or [b, c, h, w], "
            f"not {str(x.dtype).removeprefix('torch.')} {list(x.shape)}{rows * (x.ndim < 3)}"
        )
    if 0 in x.shape[-3:]:
        raise InvalidInput(f"images of {list(x.shape[-3:])} have no pixels")
    check_range(x, value_range)


def check_classifier(model: Classifier) -> None:
    """Refuse what cannot be called, such as the path of a checkpoint."""
    if not callable(model):
        raise InvalidInput(
            f"model is a {type(model).__name__}; give a module or a function from images to logits"
        )


def device_of(model: Classifier, x: Tensor, device: torch.device | str | None) -> torch.device:
    """The device given, else that of the model's tensors, else that of the images."""
    if device is None and isinstance(model, nn.Module):
        tensors = (t for group in (model.parameters(), model.buffers()) for t in group)
        device = next((t.device for t in tensors), x.device)
    if isinstance(device, int):
        device = f"cuda:{device}"
    if isinstance(device, str) and not (device.startswith("cuda") and torch.cuda.is_available()):
        return choose_device(device)  # or one sentence about a GPU or a word that there is not
    return torch.device(x.device if device is None else device)


def dtype_of(model: Classifier) -> torch.dtype:
    """The type of a module's weights; float32 if they differ or there are none."""
    weights = model.parameters() if isinstance(model, nn.Module) else ()
    found = {p.dtype for p in weights if p.is_floating_point()}
    return found.pop() if len(found) == 1 else torch.float32


def as_index(index: int | Sequence[int] | Tensor | None, images: int) -> list[int]:
    """The images' names: 0, 1, … unless given."""
    if index is None:
        return list(range(images))
    given = [index] if isinstance(index, int) else [_whole(i) for i in index]
    if len(given) != images:
        raise InvalidInput(f"{images} images need {images} indices, not {len(given)}")
    if any(i < 0 for i in given):
        raise InvalidInput("an image's index cannot be negative")
    return given


def check_labels(
    labels: int | Sequence[int] | Tensor | None, images: int, num_classes: int | None, skip: bool
) -> list[int] | None:
    """The labels of images whose wrong guesses are skipped; one outside the classes would silently
    count as wrong."""
    if not skip:
        if labels is not None:
            raise InvalidInput(
                "labels change nothing without skip_wrong=True: give it too, or leave them out"
            )
        return None
    if labels is None:
        raise InvalidInput("skip_wrong compares every guess with its label: give labels, too")
    try:
        tensor = torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError):
        raise InvalidInput(f"labels are whole numbers, one an image, not {labels!r}") from None
    given = tensor.reshape(-1).tolist()
    if len(given) != images:
        raise InvalidInput(f"{images} images need {images} labels, not {len(given)}")
    if given and (tensor.ndim > 1 or tensor.dtype.is_floating_point or tensor.dtype is torch.bool):
        raise InvalidInput(
            f"labels are whole numbers, one an image, not "
            f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
        )
    check_label_range(given, num_classes)
    return given


def check_label_range(labels: Sequence[int] | None, num_classes: int | None) -> None:
    """Refuse labels outside the classes; negative ones if the number of classes is not known."""
    for label in labels or ():
        if label < 0 or (num_classes is not None and label >= num_classes):
            end = "" if num_classes is None else f" to {num_classes - 1}"
            raise InvalidInput(f"labels count classes from 0{end}, but one of them is {label}")


def _whole(index: SupportsIndex) -> int:
    try:
        return operator.index(index)
    except TypeError:
        raise InvalidInput(f"images are named by whole numbers, not {index}") from None
