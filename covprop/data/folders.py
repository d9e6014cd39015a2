"""Images in class folders: ImageNet, Places365 and own trees; decoded later, in workers.

An own tree is either `train/CLASS/*` with `test/CLASS/*` (or `val/`; of both it is `test/`), or
plain `CLASS/*`, in which every fifth image of a class, by name, is a test image.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covprop.data.images import TEST_EVERY, Images, check_labels
from covprop.data.locate import Found, locate
from covprop.data.registry import IMAGENET_MEAN, IMAGENET_STD, Facts
from covprop.errors import InvalidInput
from covprop.options import is_whole

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm")
Item = tuple[str, int]  # path below the folder, label


@dataclass(eq=False)
class FolderImages:
    """A data set that stays on disk: `paths` [n] (bytes, below `folder`) and `labels` [n].

    `path(i)` is the file of image i. Paths are one numpy array, since a list of a million strings
    would be copied into every worker process bit by bit as it is read.
    """

    name: str
    folder: Path
    paths: NDArray[np.bytes_]
    labels: Tensor
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int] = (3, 224, 224)
    mean: tuple[float, ...] | None = IMAGENET_MEAN
    std: tuple[float, ...] | None = IMAGENET_STD

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    def path(self, index: int) -> Path:
        return self.folder / os.fsdecode(self.paths[index])


AnyImages = Images | FolderImages
"""A split of a data set, in memory or in class folders."""


def read(facts: Facts, split: str, root: Path) -> FolderImages:
    """Read the file list of a registered set (ImageNet, Places365) and check it is complete."""
    found = locate(facts, split, root)
    if found.files[0].suffix == ".txt":
        data = _read_lists(facts, found)
    else:
        (folder,) = found.files
        classes = class_names(folder)
        data = _gather(facts.name, folder, classes, _class_items(folder, classes))
    remedy = "for a subset give the folder's path as the data set's name"
    if data.num_classes != facts.num_classes:
        raise InvalidInput(
            f"{data.folder}: {data.num_classes} class folders where {facts.name} has "
            f"{facts.num_classes}; unpack it whole, or {remedy}."
        )
    if len(data) != facts.size(split):
        raise InvalidInput(
            f"{data.folder}: {len(data)} images where {facts.name} has {facts.size(split)}, so it "
            f"was not unpacked whole; unpack it again, or {remedy}."
        )
    return data


def read_tree(folder: Path, split: str) -> FolderImages:
    """Read the file list of one split of an own class-folder tree."""
    train = folder / "train"
    if train.is_dir():
        chosen = train if split == "train" else _test_folder(folder)
        # Labels follow the training classes, so that both splits number them alike.
        classes = class_names(train)
        stray = sorted(set(class_names(chosen)) - set(classes))
        if stray:
            raise InvalidInput(
                f"{chosen / stray[0]}: a class that {train} does not have; add its images there, "
                "or remove it here."
            )
        return _gather(folder.name, chosen, classes, _class_items(chosen, classes))
    classes = class_names(folder)
    items = []
    for label, name in enumerate(classes):
        files = _image_files(folder / name, name)
        if split == "train" and len(files) < 2:
            raise InvalidInput(
                f"{folder / name}: its only image is a test image, so the class has none to train "
                "on; add images, or put them into train/CLASS and val/CLASS yourself."
            )
        held = {file for i, file in enumerate(files) if i % TEST_EVERY == 0}
        items += [(file, label) for file in files if (file in held) == (split == "test")]
    return _gather(folder.name, folder, classes, items)


def _test_folder(folder: Path) -> Path:
    """test/, else val/; a test/ without classes is a contest's, whose labels nobody has."""
    there = [folder / name for name in ("test", "val") if (folder / name).is_dir()]
    if not there:
        raise InvalidInput(f"{folder}: has train/ but neither val/ nor test/; add one.")
    sorted_by_class = [path for path in there if any(entry.is_dir() for entry in path.iterdir())]
    return (sorted_by_class or there)[0]


def reshape(data: FolderImages, shape: tuple[int, int, int]) -> FolderImages:
    """The same files, read as images of another shape; grey ones where it has one channel."""
    whole = len(shape) == 3 and all(is_whole(n) for n in shape)
    if not whole or shape[0] not in (1, 3) or min(shape) < 1:
        raise InvalidInput(
            f"{data.name}: the images of a folder are read as [1 or 3, height, width], not "
            f"{list(shape)}."
        )
    channels, height, width = shape  # of a list too
    data = replace(data, image_shape=(channels, height, width))
    if channels == 3 or data.mean is None or data.std is None:
        return data
    mean, std = ((sum(each) / 3,) for each in (data.mean, data.std))
    return replace(data, mean=mean, std=std)


def class_names(folder: Path) -> tuple[str, ...]:
    """The sub-folders, sorted: class k is the k-th of them."""
    names = sorted(e.name for e in os.scandir(folder) if e.is_dir() and e.name[0] != ".")
    if not names:
        raise InvalidInput(
            f"{folder}: holds no class folders; put each class's images into a folder of its own "
            "(CLASS/*.jpg)."
        )
    return tuple(names)


def _class_items(folder: Path, classes: tuple[str, ...]) -> list[Item]:
    return [
        (file, label)
        for label, name in enumerate(classes)
        if (folder / name).is_dir()
        for file in _image_files(folder / name, name)
    ]


def _image_files(folder: Path, name: str) -> list[str]:
    entries = [e for e in os.scandir(folder) if e.name[0] != "."]  # macOS leaves ._a.jpg
    files = sorted(f"{name}/{e.name}" for e in entries if e.name.lower().endswith(SUFFIXES))
    if not files:
        raise InvalidInput(
            f"{folder}: a class folder without images ({', '.join(SUFFIXES)}); fill or remove it."
        )
    if below := sorted(e.name for e in entries if e.is_dir()):
        raise InvalidInput(
            f"{folder / below[0]}: a folder within a class folder, whose images would not be read; "
            f"move them up into {folder}, or remove it."
        )
    return files


def _read_lists(facts: Facts, found: Found) -> FolderImages:
    """Places365 as its archives unpack: a class list, a file list, and a folder of images."""
    categories, listing, images = found.files
    classes = tuple(name.removeprefix("/") for name, _ in _pairs(categories))
    items = list(_pairs(listing))
    labels = np.array([label for _, label in items], dtype=np.int64)
    check_labels(labels, len(classes), listing)
    items = [(name.lstrip("/"), label) for name, label in items]
    for name in (items[0][0], items[-1][0]) if items else ():
        if not (images / name).is_file():
            raise InvalidInput(
                f"{images / name}: listed in {listing} but missing; run "
                f"`covprop data get {facts.name}`."
            )
    return _gather(facts.name, images, classes, items)


def _pairs(path: Path) -> Iterable[Item]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                name, label = line.split()
                yield name, int(label)
            except ValueError:
                raise InvalidInput(
                    f"{path}, line {number}: expected a name and a label, found {line.strip()!r}."
                ) from None


def _gather(name: str, folder: Path, classes: tuple[str, ...], items: list[Item]) -> FolderImages:
    if not items:
        raise InvalidInput(f"{folder}: there are no images in it.")
    return FolderImages(
        name,
        folder,
        np.array([os.fsencode(path) for path, _ in items]),
        torch.tensor([label for _, label in items], dtype=torch.int64),
        # To be shown and written; a folder's name may be any bytes.
        tuple(os.fsencode(name).decode("utf-8", "replace") for name in classes),
    )
