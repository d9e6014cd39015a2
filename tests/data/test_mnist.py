import gzip
import hashlib
import os
import struct
from pathlib import Path

import numpy as np
import pytest

from covprop.data import load, mnist
from covprop.data.registry import DATASETS, IDX_TEST, IDX_TRAIN
from covprop.errors import InvalidInput


def idx(array: np.ndarray) -> bytes:
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return header + array.tobytes()


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return {
        "train": (rng.integers(0, 256, (12, 28, 28), np.uint8), np.arange(12, dtype=np.uint8) % 10),
        "test": (rng.integers(0, 256, (5, 28, 28), np.uint8), np.arange(5, dtype=np.uint8)),
    }


@pytest.fixture
def root(tmp_path: Path, arrays) -> Path:
    folder = tmp_path / "mnist"
    folder.mkdir()
    for names, split in ((IDX_TRAIN, "train"), (IDX_TEST, "test")):
        for name, array in zip(names, arrays[split], strict=True):
            (folder / name).write_bytes(idx(array))
    return tmp_path


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("layout", ["mnist", "MNIST/raw"])
def test_reads_both_splits(root, arrays, small, packed, layout):
    if layout != "mnist":
        (root / "MNIST").mkdir()
        (root / "mnist").rename(root / layout)
    if packed:
        for file in (root / layout).iterdir():
            (root / layout / (file.name + ".gz")).write_bytes(gzip.compress(file.read_bytes()))
            file.unlink()
    for split in ("train", "test"):
        data = mnist.read(small("mnist", 12, 5), split, root)
        images, labels = arrays[split]
        assert data.images.shape == (len(images), 1, 28, 28)
        assert (data.images[:, 0].numpy() == images).all()
        assert (data.labels.numpy() == labels).all()
        assert data.num_classes == 10
        assert data.mean == (0.1307,)


def refused(root: Path, small, message: str, split: str = "train") -> None:
    with pytest.raises(InvalidInput, match=message):
        mnist.read(small("mnist", 12, 5), split, root)


def test_a_truncated_file_is_named(root, small):
    file = root / "mnist" / IDX_TRAIN[0]
    file.write_bytes(file.read_bytes()[:-1])
    refused(root, small, f"{IDX_TRAIN[0]}: holds 9407 bytes .* 9408, so it is truncated")


@pytest.mark.parametrize("keep", [5, 300])
def test_a_truncated_zip_is_named(root, small, keep):
    file = root / "mnist" / IDX_TRAIN[0]
    packed = gzip.compress(file.read_bytes())
    file.unlink()
    file.with_name(file.name + ".gz").write_bytes(packed[:keep])
    refused(root, small, "ubyte.gz: cannot be unzipped .* truncated")


@pytest.mark.parametrize("content", [b"", b"\0\0\x08\x03", b"<html>not here</html>"])
def test_another_kind_of_file_is_refused(root, small, content):
    (root / "mnist" / IDX_TRAIN[0]).write_bytes(content)
    refused(root, small, "not an IDX file of 3-dimensional")


def test_counts_must_agree(root, arrays, small):
    (root / "mnist" / IDX_TRAIN[1]).write_bytes(idx(arrays["train"][1][:-2]))
    refused(root, small, "12 images but 10 labels")


def test_a_label_out_of_range(root, arrays, small):
    labels = arrays["train"][1].copy()
    labels[3] = 10
    (root / "mnist" / IDX_TRAIN[1]).write_bytes(idx(labels))
    refused(root, small, r"label 10 of image 3 is outside 0..9 \(1 such labels\)")


def test_an_image_of_another_size(root, small):
    (root / "mnist" / IDX_TRAIN[0]).write_bytes(idx(np.zeros((12, 27, 28), np.uint8)))
    refused(root, small, "an image is 1×27×28 where mnist has 1×28×28")


def test_the_official_checksum_decides(root, arrays):
    file = root / "mnist" / IDX_TRAIN[0]
    found = hashlib.md5(file.read_bytes()).hexdigest()
    with pytest.raises(InvalidInput, match=f"{found}, the official mnist file has 6bbc9ace"):
        load("mnist", "train", root)


@pytest.mark.skipif("COVPROP_DATA" not in os.environ, reason="needs the real files: COVPROP_DATA")
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_the_real_files(name):
    facts = DATASETS[name]
    train, test = load(name, "train"), load(name, "test")
    assert (len(train), len(test)) == (facts.train_size, facts.test_size)
    x = train.images.numpy() / 255
    assert abs(x.mean() - facts.mean[0]) < 1e-4
    assert abs(x.std() - facts.std[0]) < 1e-4
