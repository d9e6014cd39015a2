"""CIFAR-10 and CIFAR-100: the binary version and the python version.

Binary: records of 1 label byte (CIFAR-100: coarse, then fine) and 3,072 bytes, channels first.
Python: a pickled dict with `data` [n, 3072] and `labels` (CIFAR-100: `fine_labels`). A pickle can
run any code when loaded, so it goes through an unpickler that knows numpy arrays and nothing else.
"""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covprop.data.images import Images, official_images
from covprop.data.locate import check_md5, locate
from covprop.data.registry import Facts
from covprop.errors import InvalidInput

PIXELS = 3 * 32 * 32
Arrays = tuple[NDArray[np.uint8], NDArray[np.integer]]


def read(facts: Facts, split: str, root: Path) -> Images:
    """Read one split of CIFAR-10 or CIFAR-100, from whichever version is there."""
    found = locate(facts, split, root)
    read_file = _read_binary if found.files[0].suffix == ".bin" else _read_python
    batches = [read_file(path, facts) for path in found.files]
    images = np.concatenate([images for images, _ in batches])
    labels = np.concatenate([labels for _, labels in batches])
    if len(images) != facts.size(split):
        raise InvalidInput(
            f"{found.folder}: {len(images)} {split} images where {facts.name} has "
            f"{facts.size(split)}; move it away and run `covprop data get {facts.name}`."
        )
    return official_images(facts, images, labels, source=found.folder)


def _read_binary(path: Path, facts: Facts) -> Arrays:
    content = path.read_bytes()
    label_bytes = 2 if facts.num_classes == 100 else 1
    record = label_bytes + PIXELS
    if not content or len(content) % record:
        raise InvalidInput(
            f"{path}: {len(content)} bytes are no whole number of {record}-byte records, so it is "
            f"truncated or damaged; move it away and run `covprop data get {facts.name}`."
        )
    check_md5(content, path, facts)
    records = np.frombuffer(content, np.uint8).reshape(-1, record)
    return records[:, label_bytes:].reshape(-1, 3, 32, 32), records[:, label_bytes - 1]


def _read_python(path: Path, facts: Facts) -> Arrays:
    content = path.read_bytes()
    check_md5(content, path, facts)
    batch = unpickle_arrays(content, path)
    key = b"fine_labels" if facts.num_classes == 100 else b"labels"
    try:
        data, labels = batch[b"data"], np.asarray(batch[key], dtype=np.int64)
        if data.dtype != np.uint8 or data.shape != (len(labels), PIXELS):
            raise ValueError(f"its data is {data.dtype} {data.shape} for {len(labels)} labels")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInput(
            f"{path}: not a batch of {facts.name} ({error}); move it away and run "
            f"`covprop data get {facts.name}`."
        ) from None
    return data.reshape(-1, 3, 32, 32), labels


# numpy keeps this function under a private name that has moved between releases; every array
# hands it out when asked how to pickle itself.
_reconstruct = np.empty(0).__reduce__()[0]

ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return ADMITTED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}") from None


def unpickle_arrays(content: bytes, path: Path) -> dict[Any, Any]:
    """Unpickle a dict of plain values and numpy arrays; anything else in it is refused."""
    try:
        value = _ArrayUnpickler(io.BytesIO(content), encoding="bytes").load()
    # A damaged pickle can fail in nearly any way; all of them mean the same to the user.
    except Exception as error:
        raise InvalidInput(
            f"{path}: not a pickle of numpy arrays ({error}); it was not loaded, since a pickle "
            "can run code: fetch the official file."
        ) from None
    if not isinstance(value, dict):
        raise InvalidInput(f"{path}: holds a {type(value).__name__} where a dict is expected.")
    # Files written by Python 3 have text keys, the official ones bytes.
    return {k.encode() if isinstance(k, str) else k: v for k, v in value.items()}
