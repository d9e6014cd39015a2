"""Images in memory: one uint8 tensor and its labels, validated once when they are read."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covprop.data.registry import Facts
from covprop.errors import InvalidInput

TEST_EVERY = 5
"""Of a set that comes without a test split, every fifth image is a test image."""


@dataclass(eq=False)
class Images:
    """A data set small enough to live on the device.

    `images` is uint8 [n, c, h, w] and `labels` int64 [n]; `mean` and `std` (per channel, on the
    [0, 1] scale, over the training split) are what a model's Normalize layer wants.

    >>> import covprop.data
    >>> covprop.data.load("digits", "test").image_shape
    (1, 8, 8)
    """

    name: str
    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    _resident: dict[torch.device, tuple[Tensor, Tensor]] = field(
        default_factory=dict, repr=False, init=False
    )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        c, h, w = self.images.shape[1:]
        return c, h, w

    def resident(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Images and labels on `device`, copied there the first time only."""
        if device not in self._resident:
            self._resident[device] = self.images.to(device), self.labels.to(device)
        return self._resident[device]


def make_images(
    name: str,
    images: NDArray[np.uint8],
    labels: NDArray[np.integer],
    classes: tuple[str, ...],
    *,
    source: Path | str,
    image_shape: tuple[int, ...] | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
) -> Images:
    """Validate arrays [n, c, h, w] and [n] read from `source` and wrap them as `Images`."""
    if images.dtype != np.uint8:
        raise InvalidInput(
            f"{source}: images must be uint8 in 0..255, these are {images.dtype}; "
            "scale and convert them first."
        )
    if images.ndim != 4 or (image_shape is not None and images.shape[1:] != image_shape):
        wanted = "×".join(map(str, image_shape)) if image_shape else "channels×height×width"
        found = "×".join(map(str, images.shape[1:]))
        raise InvalidInput(f"{source}: an image is {found} where {name} has {wanted}.")
    if len(images) != len(labels):
        raise InvalidInput(
            f"{source}: {len(images)} images but {len(labels)} labels; the file is damaged or "
            "incomplete, fetch or write it anew."
        )
    if len(images) == 0:
        raise InvalidInput(f"{source}: there are no images in it.")
    check_labels(labels, len(classes), source)
    return Images(
        name,
        torch.from_numpy(np.array(images, order="C")),
        torch.from_numpy(labels.astype(np.int64)),
        classes,
        mean,
        std,
    )


def official_images(
    facts: Facts, images: NDArray[np.uint8], labels: NDArray[np.integer], *, source: Path | str
) -> Images:
    """The same for a registered set, whose facts say the rest."""
    return make_images(
        facts.name,
        images,
        labels,
        facts.classes,
        source=source,
        image_shape=facts.image_shape,
        mean=facts.mean,
        std=facts.std,
    )


def check_labels(labels: NDArray[np.integer], num_classes: int, source: Path | str) -> None:
    """Refuse labels outside 0..num_classes−1, naming the first one."""
    wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if len(wrong):
        raise InvalidInput(
            f"{source}: label {labels[wrong[0]]} of image {wrong[0]} is outside "
            f"0..{num_classes - 1} ({len(wrong)} such labels); mend the labels or the class list."
        )
