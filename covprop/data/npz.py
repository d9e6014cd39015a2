"""An own data set as one .npz file: arrays of uint8 images and integer labels, no code.

Three namings are read: `x_train y_train x_test y_test`, `train_images train_labels test_images
test_labels`, or just `images labels` (then every fifth image is a test image). Images are
[n, h, w], [n, h, w, c] or [n, c, h, w] with c = 1 or 3; an optional array `classes` names the
classes.
"""

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covprop.data.images import TEST_EVERY, Images, check_labels, make_images
from covprop.errors import InvalidInput

Pair = tuple[NDArray[Any], NDArray[Any]]


def read(path: Path, split: str) -> Images:
    """Read one split of an own .npz file; mean and std are those of its training images."""
    try:
        # Opened here: numpy leaves a damaged file open.
        with path.open("rb") as raw:
            if not zipfile.is_zipfile(raw):  # numpy would take it for one array, or for a pickle
                raise zipfile.BadZipFile("it is cut off, or something else")
            raw.seek(0)
            with np.load(raw, allow_pickle=False) as file:
                arrays = {key: file[key] for key in file.files}
    except FileNotFoundError:
        raise InvalidInput(f"{path}: no such file.") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InvalidInput(
            f"{path}: cannot be read as an .npz of plain arrays ({error}); write it with "
            "numpy.savez, from arrays of numbers or text."
        ) from None
    train, test = _splits(arrays, path)
    train_images = _channels_first(train[0], path)
    images, labels = (train_images, train[1]) if split == "train" else test
    images, labels = _channels_first(images, path), _whole_numbers(labels, path)
    shape = train_images.shape[1:]
    return make_images(
        path.stem,
        images,
        labels,
        _classes(arrays, _whole_numbers(train[1], path), path),
        source=path,
        image_shape=shape,
        **_statistics(train_images),
    )


def _splits(arrays: dict[str, NDArray[Any]], path: Path) -> tuple[Pair, Pair]:
    for names in (
        ("x_train", "y_train", "x_test", "y_test"),
        ("train_images", "train_labels", "test_images", "test_labels"),
    ):
        if all(name in arrays for name in names):
            a, b, c, d = (arrays[name] for name in names)
            return (a, b), (c, d)
    if "images" in arrays and "labels" in arrays:
        images = _channels_first(arrays["images"], path)
        labels = _whole_numbers(arrays["labels"], path)
        if images.shape[:1] != labels.shape[:1]:
            raise InvalidInput(f"{path}: {len(images)} images but {len(labels)} labels.")
        test = np.arange(len(images)) % TEST_EVERY == 0
        if lost := sorted(set(labels[test].tolist()) - set(labels[~test].tolist())):
            raise InvalidInput(
                f"{path}: with every {TEST_EVERY}th image for testing, class {lost[0]} has no "
                "image to train on; shuffle images and labels alike, or name them x_train, "
                "y_train, x_test, y_test."
            )
        # Here, where an image still has the number it has in the file.
        check_labels(labels, len(_classes(arrays, labels[~test], path)), path)
        return (images[~test], labels[~test]), (images[test], labels[test])
    raise InvalidInput(
        f"{path}: holds the arrays {', '.join(sorted(arrays)) or '(none)'}; name them x_train, "
        "y_train, x_test, y_test (or images, labels for an automatic split)."
    )


def _channels_first(images: NDArray[Any], path: Path) -> NDArray[Any]:
    if images.ndim == 3:
        return images[:, None]
    if images.ndim == 4 and images.shape[1] in (1, 3):
        return images
    if images.ndim == 4 and images.shape[3] in (1, 3):
        return images.transpose(0, 3, 1, 2)
    raise InvalidInput(
        f"{path}: images of shape {'×'.join(map(str, images.shape))}; store them as [n, h, w], "
        "[n, h, w, c] or [n, c, h, w] with 1 or 3 channels."
    )


def _whole_numbers(labels: NDArray[Any], path: Path) -> NDArray[np.integer]:
    flat = labels.reshape(-1) if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if flat.ndim != 1 or not np.issubdtype(flat.dtype, np.integer):
        raise InvalidInput(
            f"{path}: labels must be whole numbers [n], one class number an image, but these are "
            f"{labels.dtype} of shape {'×'.join(map(str, labels.shape))}; convert them first."
        )
    return flat


def _classes(
    arrays: dict[str, NDArray[Any]], train_labels: NDArray[np.integer], path: Path
) -> tuple[str, ...]:
    if "classes" in arrays:
        names = arrays["classes"].reshape(-1).tolist()
        return tuple(n.decode(errors="replace") if isinstance(n, bytes) else str(n) for n in names)
    if len(train_labels) == 0:
        raise InvalidInput(f"{path}: there are no training images in it.")
    found = np.unique(train_labels)
    gaps = np.flatnonzero(found != np.arange(len(found)))
    if len(gaps) and found[0] >= 0:
        raise InvalidInput(
            f"{path}: class {gaps[0]} has no image to train on, but there are labels up to "
            f"{found[-1]}; number the classes 0, 1, … without a gap, or name every one in an array "
            "called classes."
        )
    return tuple(str(label) for label in range(int(found[-1]) + 1))


def _statistics(images: NDArray[Any]) -> dict[str, tuple[float, ...]]:
    # From counts of the 256 levels: exact, and no float copy of the whole set.
    if images.dtype != np.uint8 or images.size == 0:
        return {}
    levels = np.arange(256) / 255
    mean, std = [], []
    for channel in range(images.shape[1]):
        share = np.bincount(images[:, channel].reshape(-1), minlength=256)
        share = share / share.sum()
        mean.append(float(share @ levels))
        # A constant channel has nothing to scale by.
        std.append(float(np.sqrt(share @ (levels - mean[-1]) ** 2)) or 1.0)
    return {"mean": tuple(mean), "std": tuple(std)}
