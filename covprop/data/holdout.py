"""Training images that are held out: what to explore on, so that the test images stay unseen."""

from dataclasses import replace

import torch
from torch import Tensor

from covprop.data.folders import AnyImages
from covprop.data.images import Images
from covprop.errors import InvalidInput
from covprop.options import is_whole


def take(data: AnyImages, positions: Tensor) -> AnyImages:
    """The images at `positions` as a data set of their own."""
    labels = data.labels[positions]
    if isinstance(data, Images):
        return replace(data, images=data.images[positions], labels=labels)
    return replace(data, paths=data.paths[positions.numpy()], labels=labels)


def held_out(count: int, holdout: int) -> Tensor:
    """Which of `count` images are held out: evenly spaced, since class folders come in order.

    >>> held_out(10, 3).tolist()
    [0, 3, 6]
    """
    return torch.arange(holdout) * count // holdout


def divide(train: AnyImages, holdout: int) -> tuple[AnyImages, AnyImages]:
    """The training images without the held-out ones, and these."""
    if not is_whole(holdout) or not 0 < holdout < len(train):
        raise InvalidInput(
            f"data.holdout = {holdout} of the {len(train)} training images of {train.name} leaves "
            "none on one side, or is no whole number; set it between."
        )
    chosen = held_out(len(train), holdout)
    rest = torch.ones(len(train), dtype=torch.bool)
    rest[chosen] = False
    return take(train, rest.nonzero().squeeze(1)), take(train, chosen)
