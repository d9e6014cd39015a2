"""Data sets: official files on disk in, validated images and exact batches out.

>>> import covprop.data
>>> train = covprop.data.load("digits", "train")
>>> len(train), train.num_classes, train.image_shape
(1437, 10, (1, 8, 8))
"""

from collections.abc import Callable
from pathlib import Path

from covprop.data import cifar, digits, folders, mnist, npz, svhn
from covprop.data.batches import Batch, batches, count_batches
from covprop.data.folders import AnyImages, FolderImages
from covprop.data.holdout import divide
from covprop.data.images import Images
from covprop.data.locate import data_root
from covprop.data.registry import DATASETS, Facts
from covprop.errors import InvalidInput
from covprop.names import unknown

__all__ = [
    "DATASETS",
    "AnyImages",
    "Batch",
    "Facts",
    "FolderImages",
    "Images",
    "batches",
    "count_batches",
    "data_root",
    "in_folders",
    "load",
]

Reader = Callable[[Facts, str, Path], AnyImages]
_READERS: dict[str, Reader] = {
    "mnist": mnist.read,
    "fashion-mnist": mnist.read,
    "cifar10": cifar.read,
    "cifar100": cifar.read,
    "svhn": svhn.read,
    "imagenet": folders.read,
    "places365": folders.read,
}


def load(
    name: str,
    split: str,
    root: Path | str | None = None,
    *,
    holdout: int | None = None,
    image_shape: tuple[int, int, int] | None = None,
) -> AnyImages:
    """Read one split ("train" or "test") of a data set and validate it.

    `name` is a registered set, looked for in its official layouts below `root` (else
    $COVPROP_DATA, else ./data), or the path of an own .npz file or class-folder tree. With
    `holdout`, so many training images, evenly spaced, are the split "holdout" instead.
    `image_shape` (channels, height, width) is what images in class folders are scaled and cropped
    to, by default (3, 224, 224); other sets have a shape of their own.
    """
    if split not in ("train", "test", "holdout"):
        raise InvalidInput(f'split is {split!r}; choose "train", "test" or "holdout".')
    if split == "holdout" and holdout is None:
        raise InvalidInput(
            f"no images of {name} are held out; train a run with --set data.holdout=N."
        )
    try:
        data = _load(name, "test" if split == "test" else "train", data_root(root))
    except OSError as error:
        raise InvalidInput(f"{name} cannot be read: {error}.") from error
    if image_shape is not None and isinstance(data, FolderImages):
        data = folders.reshape(data, image_shape)
    if holdout is None or split == "test":
        return data
    return divide(data, holdout)[split == "holdout"]


def in_folders(name: str) -> bool:
    """Whether the set of that name lies in class folders, which are scaled and cropped on reading.

    >>> [in_folders(name) for name in ("imagenet", "cifar10", "photos", "photos.npz")]
    [True, False, True, False]
    """
    if name in DATASETS:
        return _READERS.get(name) is folders.read
    return Path(name).suffix != ".npz"


def _load(name: str, split: str, root: Path) -> AnyImages:
    if name == "digits":
        return digits.read(DATASETS[name], split)
    if name in DATASETS:
        return _READERS[name](DATASETS[name], split, root)
    path = Path(name).expanduser()
    if path.suffix == ".npz":
        return npz.read(path, split)
    if path.is_dir():
        return folders.read_tree(path, split)
    raise unknown("data set, .npz file or class-folder tree", name, DATASETS)
