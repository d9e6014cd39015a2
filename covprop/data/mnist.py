"""MNIST and Fashion-MNIST: the IDX format, gzipped or not.

An IDX file is a big-endian header (two zero bytes, type 8 = uint8, number of dimensions d, then d
sizes of four bytes each) followed by the values.
"""

import gzip
import zlib
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from covprop.data.images import Images, official_images
from covprop.data.locate import check_md5, locate
from covprop.data.registry import Facts
from covprop.errors import InvalidInput


def read(facts: Facts, split: str, root: Path) -> Images:
    """Read one split of MNIST or Fashion-MNIST."""
    images_file, labels_file = locate(facts, split, root).files
    images = read_idx(images_file, 3, facts)
    labels = read_idx(labels_file, 1, facts)
    return official_images(facts, images[:, None], labels, source=images_file)


def read_idx(path: Path, dimensions: int, facts: Facts) -> NDArray[np.uint8]:
    """Read one IDX file of uint8 values with the given number of dimensions."""
    content = _content(path)
    start = 4 + 4 * dimensions
    if content[:4] != bytes([0, 0, 8, dimensions]) or len(content) < start:
        raise InvalidInput(
            f"{path}: not an IDX file of {dimensions}-dimensional uint8 data; "
            f"run `covprop data get {facts.name}` for the official one."
        )
    shape = [int(size) for size in np.frombuffer(content, ">u4", dimensions, offset=4)]
    if len(content) - start != prod(shape):
        raise InvalidInput(
            f"{path}: holds {len(content) - start} bytes of data where its header says "
            f"{prod(shape)}, so it is truncated or damaged; move it away and run "
            f"`covprop data get {facts.name}`."
        )
    check_md5(content, path, facts)
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _content(path: Path) -> bytes:
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        with gzip.open(path) as file:
            return file.read()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InvalidInput(
            f"{path}: cannot be unzipped ({error}), so it is truncated or damaged; move it away "
            "and fetch it anew."
        ) from None
