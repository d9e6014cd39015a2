"""From an image file to pixels, with Pillow.

At 224×224 by the two standard crops of the field. Train: a random part of 8 to 100 % of the area
and aspect ratio 3/4 to 4/3, resized to 224×224, and a flip. Test: the shorter side to 256, then
the central 224×224. At any other size the image is scaled until it just covers it and what sticks
out is cut off, so that images of that very size stay as they are; training then shifts and flips.
"""

import math
import random
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from covprop.errors import InvalidInput

SIDE, CROP = 256, 224
PADDING = 4
AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
ATTEMPTS = 10
UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
Box = tuple[int, int, int, int]  # left, top, right, bottom


def read_image(path: Path, shape: tuple[int, int, int] = (3, CROP, CROP)) -> Tensor:
    """Decode one file to uint8 [c, h, w] of `shape`, cropped as test images are."""
    return as_tensor(read_crop(path, "none", random.Random(0), shape))


def read_crop(
    path: Path, augment: str, rng: random.Random, shape: tuple[int, int, int]
) -> Image.Image:
    """Decode one file to `shape`; with an `augment`, `rng` decides crop and flip."""
    channels, height, width = shape
    image = open_image(path, "L" if channels == 1 else "RGB")
    if (height, width) != (CROP, CROP):
        image = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
        if augment == "crop-flip":
            left, top = (rng.randint(-PADDING, PADDING) for _ in range(2))
            image = image.crop((left, top, left + width, top + height))  # black beyond its edge
    elif augment == "crop-flip":
        box = random_box(image.width, image.height, rng)
        image = image.crop(box).resize((CROP, CROP), Image.Resampling.BILINEAR)
    else:
        image = centre_crop(image)
    if augment != "none" and rng.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return image


def as_tensor(image: Image.Image) -> Tensor:
    """Grey or colour pixels as uint8 [c, h, w]."""
    pixels = torch.from_numpy(np.array(image))
    return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1).contiguous()


def open_image(path: Path, mode: Literal["L", "RGB"]) -> Image.Image:
    """Decode one file to grey ("L") or colour ("RGB") of 8 bits a channel."""
    try:
        with Image.open(path) as file:
            # Pillow would cut 16-bit grey off at 255, which leaves hardly anything but white.
            if file.mode.startswith("I"):
                return _grey(path, file).convert(mode)
            if file.mode == "F":  # on a scale of its own, which Pillow would cut to 0 … 255
                raise InvalidInput(f"{path}: its pixels are floats; store it with 8 or 16 bits.")
            file.load()
            file.info.pop("transparency", None)  # which is dropped anyway, with a warning
            return file if file.mode == mode else file.convert(mode)  # it copies in any case
    except FileNotFoundError:
        raise InvalidInput(f"{path}: the image has disappeared since the set was read.") from None
    except InvalidInput:
        raise
    except UNREADABLE as error:
        raise InvalidInput(
            f"{path}: cannot be decoded as an image ({error}); replace or remove it."
        ) from None


def _grey(path: Path, file: Image.Image) -> Image.Image:
    """8 of the 16 bits of grey; of TIFFs with whole numbers of 32 bits or a sign, 0 to 255."""
    levels = np.asarray(file).astype(np.int64)
    if file.mode != "I" or file.format != "TIFF":  # a PGM of 16 bits is "I" too
        levels >>= 8
    elif levels.min() < 0 or levels.max() > 255:
        raise InvalidInput(
            f"{path}: its pixels go from {levels.min()} to {levels.max()}, on a scale that the "
            "file does not tell; store it with 8 or 16 bits without a sign."
        )
    return Image.fromarray(levels.clip(0, 255).astype(np.uint8))


def centre_crop(image: Image.Image) -> Image.Image:
    """Shorter side to 256 with bilinear filtering, then the central 224×224."""
    width, height = image.size
    short = min(width, height)
    resized = image.resize(
        (int(SIDE * width / short), int(SIDE * height / short)), Image.Resampling.BILINEAR
    )
    left = round((resized.width - CROP) / 2)
    top = round((resized.height - CROP) / 2)
    return resized.crop((left, top, left + CROP, top + CROP))


def random_box(width: int, height: int, rng: random.Random) -> Box:
    """A box of random area and aspect; after ten misfits the largest central one in ratio."""
    for _ in range(ATTEMPTS):
        area = width * height * rng.uniform(*AREA)
        aspect = math.exp(rng.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = rng.randint(0, width - w), rng.randint(0, height - h)
            return left, top, left + w, top + h
    aspect = min(max(width / height, RATIO[0]), RATIO[1])
    w = min(width, round(height * aspect))
    h = min(height, round(width / aspect))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h
