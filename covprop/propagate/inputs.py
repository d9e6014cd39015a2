"""What a caller hands over (σ, an image's shape, images): as needed, or one sentence about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsIndex

from torch import Tensor, nn

from covprop.errors import InvalidInput


def check_samples(samples: int, least: int = 2) -> None:
    """Refuse what is no number of noisy samples; a variance needs two."""
    if not isinstance(samples, SupportsIndex) or int(samples) < least:
        raise InvalidInput(
            f"samples is {samples!r}: give a whole number of noisy samples, at least {least}."
        )


def check_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """An image shape as a tuple, or one sentence about what is wrong with it."""
    given = isinstance(shape, Sequence) and len(shape) > 0
    if not given or not all(isinstance(n, SupportsIndex) and int(n) > 0 for n in shape):
        raise InvalidInput(
            f"input_shape is {shape!r}: give the shape of one image, (channels, height, width)."
        )
    return tuple(int(n) for n in shape)


def check_images(x: Tensor, shape: tuple[int, ...], model: nn.Module) -> None:
    """Refuse images of another shape, type or device than the model and its plan are for."""
    if tuple(x.shape) == shape:
        raise InvalidInput(
            f"the input has shape {list(shape)}: give a batch of images, as x[None]."
        )
    if tuple(x.shape[1:]) != shape:
        raise InvalidInput(
            f"the input has shape {list(x.shape)}: this propagator was built for "
            f"[batch, {', '.join(map(str, shape))}]; build one with "
            f"input_shape={tuple(x.shape[1:])}."
        )
    weight = next(model.parameters(), x)
    if x.dtype != weight.dtype and not x.is_floating_point():
        raise InvalidInput(
            f"the input is {x.dtype}: give images as {weight.dtype}, scaled to [0, 1]."
        )
    if x.device != weight.device:
        raise InvalidInput(
            f"the input is on {x.device} and the model on {weight.device}: move one to the other."
        )
