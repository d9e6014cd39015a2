"""SVHN, format 2: `X` uint8 [32, 32, 3, n] and `y` [n, 1] in a .mat file; label 10 is digit 0.

The official checksum is verified when the file is downloaded; a load checks the structure only,
so that a re-made crop of the same images can be used.
"""

from pathlib import Path

import numpy as np

from covprop.data.images import Images, official_images
from covprop.data.locate import locate
from covprop.data.registry import Facts
from covprop.errors import InvalidInput


def read(facts: Facts, split: str, root: Path) -> Images:
    """Read one split of SVHN."""
    import scipy.io

    (path,) = locate(facts, split, root).files
    remedy = f"move it away and run `covprop data get {facts.name}`"
    try:
        content = scipy.io.loadmat(path, variable_names=["X", "y"])
        x, y = content["X"], content["y"].reshape(-1)
    except KeyError as error:
        raise InvalidInput(f"{path}: holds no variable {error}; {remedy}.") from None
    # A damaged .mat file can fail in nearly any way inside the reader.
    except Exception as error:
        raise InvalidInput(
            f"{path}: cannot be read as a .mat file ({error}), so it is truncated or damaged; "
            f"{remedy}."
        ) from None
    if x.ndim != 4 or x.shape[-1] != facts.size(split):
        raise InvalidInput(
            f"{path}: X is {'×'.join(map(str, x.shape))} where {split} has "
            f"{facts.size(split)} images of 32×32×3; {remedy}."
        )
    if not np.issubdtype(y.dtype, np.integer) or len(y) == 0 or y.min() < 1 or y.max() > 10:
        raise InvalidInput(f"{path}: the labels y must be whole numbers 1..10; {remedy}.")
    return official_images(facts, x.transpose(3, 2, 0, 1), y % 10, source=path)
