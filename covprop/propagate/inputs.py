"""Checks of a caller's arguments; each raises one sentence that says what is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn

from covprop.errors import InvalidInput
from covprop.options import is_whole
from covprop.pixels import check_dense


def check_samples(samples: int, least: int = 2) -> None:
    """Refuse anything but a whole number of noisy samples; a variance needs two."""
    if not is_whole(samples) or samples < least:
        raise InvalidInput(
            f"samples is {samples!r}: give a whole number of noisy samples, at least {least}."
        )


def check_momentum(momentum: float) -> None:
    """Refuse anything but a number in [0, 1); with 1 no measurement would count."""
    if not isinstance(momentum, int | float) or not 0 <= momentum < 1:
        raise InvalidInput(f"momentum is {momentum!r}: give a number in [0, 1).")


def check_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """An image shape as a tuple, or InvalidInput."""
    given = isinstance(shape, Sequence) and len(shape) > 0
    if not given or not all(is_whole(n) and n > 0 for n in shape):
        found = (
            f"a {type(shape).__name__}" if isinstance(shape, Tensor | nn.Module) else repr(shape)
        )
        raise InvalidInput(
            f"input_shape is {found}: give the shape of one image, (channels, height, width)."
        )
    return tuple(int(n) for n in shape)


def check_images(x: Tensor, shape: tuple[int, ...], model: nn.Module) -> None:
    """Refuse images whose shape, type or device do not fit the model and its plan."""
    if not isinstance(x, Tensor):
        raise InvalidInput(f"x is a {type(x).__name__}; give a tensor, as by torch.as_tensor(x).")
    check_dense(x)
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


@contextmanager
def type_named(x: Tensor, model: nn.Module) -> Iterator[None]:
    """Turn a layer's error about the type of its input into one sentence.

    It cannot be checked beforehand: autocast, `Normalize` or a cast in forward may convert.
    """
    try:
        yield
    except RuntimeError as error:
        wanted = next(model.parameters(), x).dtype
        if x.dtype == wanted or "type" not in str(error):
            raise
        raise InvalidInput(
            f"the input is {x.dtype} and the model {wanted}: give images as x.to({wanted}), or "
            f"convert the model by model.to({x.dtype})."
        ) from error
