"""Checks of a caller's arguments, before anything is measured or drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsIndex

import torch
from torch import Tensor

from covprop.errors import InvalidInput
from covprop.pixels import check_range
from covprop.radius import check_labels


def check_images(x: Tensor) -> None:
    """A batch of float images with pixels in [0, 1], or one sentence about what it is instead."""
    if not isinstance(x, Tensor):
        raise InvalidInput(f"x is a {type(x).__name__}: give a tensor, as by torch.as_tensor(x).")
    if x.ndim != 4 or not x.numel() or not x.is_floating_point():
        raise InvalidInput(
            f"x is {x.dtype} {list(x.shape)}: give float images [b, c, h, w], at least one."
        )
    check_range(x, (0.0, 1.0), fixed=True)


def as_parts(parts: str | Sequence[str], known: Sequence[str]) -> Sequence[str]:
    """The parts to make; one may come as a plain word."""
    parts = (parts,) if isinstance(parts, str) else parts
    for part in parts:
        if part not in known:
            raise InvalidInput(f"there is no part {part!r}: choose among {', '.join(known)}.")
    return parts


def as_positions(images: Sequence[int], count: int) -> list[int]:
    """Positions of the images shown singly, at least one."""
    for image in images:
        if not isinstance(image, SupportsIndex) or not 0 <= int(image) < count:
            raise InvalidInput(f"there is no image {image}: {count} are at hand, from 0 on.")
    if not len(images):
        raise InvalidInput("images names none: give at least one position, or None for a choice.")
    return [int(image) for image in images]


def as_labels(labels: Sequence[int] | Tensor, images: int, classes: int) -> list[int]:
    """The class number of each image."""
    try:
        found = torch.as_tensor(labels).cpu()
    except (TypeError, ValueError, RuntimeError):
        raise InvalidInput(
            f"labels is no list of whole numbers ({type(labels).__name__}): give the class number "
            f"of each of the {images} images."
        ) from None
    check_labels(torch.empty(images, classes, device="meta"), found)
    return found.tolist()


def as_names(names: Sequence[str] | None, classes: int) -> Sequence[str]:
    """The names of the classes: their numbers unless given."""
    if names is None:
        return [str(k) for k in range(classes)]
    if len(names) != classes:
        raise InvalidInput(
            f"classes has {len(names)} names and the model {classes} classes: give a name for "
            "each, in their order."
        )
    return names
