import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from covprop.data import cifar, load
from covprop.data.registry import DATASETS
from covprop.errors import InvalidInput

RNG = np.random.default_rng(1)
PIXELS = RNG.integers(0, 256, (10, 3, 32, 32), np.uint8)
LABELS = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5, 0], np.uint8)
FINE = LABELS + 90


def python2_pickle(data: np.ndarray, key: bytes, labels: list[int]) -> bytes:
    """What Python 2's cPickle wrote for {'data': array, key: labels}: 8-bit strings, protocol 2."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    def long_text(value: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(value)) + value

    dtype = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R"
    dtype += b"(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b")
    array += b"\x87R(K\x01K" + bytes([len(data)]) + b"M" + struct.pack("<H", data.shape[1])
    array += b"\x86" + dtype + b"\x89" + long_text(data.tobytes()) + b"tb"
    items = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(key) + items + b"u."


def write_binary(root: Path, name: str) -> None:
    """Two images a training batch for CIFAR-10; all ten in CIFAR-100's one file."""
    if name == "cifar10":
        folder, prefix, shares = "cifar-10-batches-bin", LABELS[:, None], np.split(np.arange(10), 5)
        files = [f"data_batch_{i}.bin" for i in range(1, 6)]
    else:
        folder, shares, files = "cifar-100-binary", [np.arange(10)], ["train.bin"]
        prefix = np.stack([LABELS, FINE], 1)
    (root / folder).mkdir()
    for file, share in zip(files, shares, strict=True):
        records = np.concatenate([prefix[share], PIXELS[share].reshape(len(share), -1)], 1)
        (root / folder / file).write_bytes(records.tobytes())


def write_python(root: Path, name: str, dump) -> None:
    if name == "cifar10":
        folder, key, labels, shares = "cifar-10-batches-py", b"labels", LABELS, 5
        files = [f"data_batch_{i}" for i in range(1, 6)]
    else:
        folder, key, labels, shares = "cifar-100-python", b"fine_labels", FINE, 1
        files = ["train"]
    (root / folder).mkdir()
    for file, share in zip(files, np.split(np.arange(10), shares), strict=True):
        data = PIXELS[share].reshape(len(share), -1)
        (root / folder / file).write_bytes(dump(data, key, labels[share].tolist()))


def python3_pickle(data: np.ndarray, key: bytes, labels: list[int]) -> bytes:
    return pickle.dumps({"data": data, key.decode(): labels}, protocol=4)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
@pytest.mark.parametrize("version", ["binary", "python 2", "python 3"])
def test_reads_every_version(tmp_path, small, name, version):
    if version == "binary":
        write_binary(tmp_path, name)
    else:
        dump = python2_pickle if version == "python 2" else python3_pickle
        write_python(tmp_path, name, dump)
    data = cifar.read(small(name, 10, 10), "train", tmp_path)
    assert (data.images.numpy() == PIXELS).all()
    assert (data.labels.numpy() == (LABELS if name == "cifar10" else FINE)).all()
    assert data.num_classes == DATASETS[name].num_classes == len(DATASETS[name].classes)


def test_the_hand_made_pickle_is_one():
    """The writer above against the standard library's own reader."""
    data = PIXELS[:2].reshape(2, -1)
    content = python2_pickle(data, b"labels", [3, 1])
    value = cifar.unpickle_arrays(content, Path("x"))
    assert value[b"labels"] == [3, 1]
    assert (value[b"data"] == data).all()


class Evil:
    def __reduce__(self):
        return os.mkdir, ("pwned",)


class Sneaky:
    def __reduce__(self):
        return np.fromfile, ("/etc/hostname",)


@pytest.mark.parametrize("payload", [Evil(), Sneaky(), {"data": Evil()}, [PIXELS, Evil()]])
def test_a_pickle_that_wants_more_than_arrays_is_refused(tmp_path, small, monkeypatch, payload):
    monkeypatch.chdir(tmp_path)
    write_python(tmp_path, "cifar100", lambda *_: pickle.dumps(payload))
    with pytest.raises(InvalidInput, match=r"it asks for .*it was not loaded"):
        cifar.read(small("cifar100", 10, 10), "train", tmp_path)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a pickle of numpy arrays"),
        (python3_pickle(PIXELS.reshape(10, -1), b"fine_labels", [0] * 10)[:-50], "not a pickle"),
        (pickle.dumps([1, 2]), "holds a list where a dict"),
        (python3_pickle(PIXELS.reshape(10, -1), b"labels", [0] * 10), "not a batch of cifar100"),
        (python3_pickle(PIXELS.reshape(10, -1), b"fine_labels", [0] * 9), "for 9 labels"),
        (python3_pickle(PIXELS.reshape(20, -1), b"fine_labels", [0] * 20), "not a batch"),
    ],
)
def test_a_damaged_pickle_is_one_sentence(tmp_path, small, content, message):
    write_python(tmp_path, "cifar100", lambda *_: content)
    with pytest.raises(InvalidInput, match=message):
        cifar.read(small("cifar100", 10, 10), "train", tmp_path)


def test_a_truncated_batch(tmp_path, small):
    write_binary(tmp_path, "cifar10")
    file = tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(InvalidInput, match=r"data_batch_3.bin: 6145 bytes are no whole number"):
        cifar.read(small("cifar10", 10, 10), "train", tmp_path)


def test_a_missing_batch(tmp_path, small):
    write_binary(tmp_path, "cifar10")
    (tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin").unlink()
    with pytest.raises(InvalidInput, match=r"incomplete: .*-bin lacks data_batch_3.bin; run"):
        cifar.read(small("cifar10", 10, 10), "train", tmp_path)


def test_too_few_images(tmp_path, small):
    write_binary(tmp_path, "cifar10")
    with pytest.raises(InvalidInput, match="10 train images where cifar10 has 11"):
        cifar.read(small("cifar10", 11, 10), "train", tmp_path)


def test_a_label_out_of_range(tmp_path, small, monkeypatch):
    monkeypatch.setitem(globals(), "FINE", LABELS + 95)
    write_binary(tmp_path, "cifar100")
    with pytest.raises(InvalidInput, match=r"label 100 of image 4 is outside 0..99"):
        cifar.read(small("cifar100", 10, 10), "train", tmp_path)


@pytest.mark.parametrize("writer", [write_binary, lambda r, n: write_python(r, n, python2_pickle)])
def test_the_official_checksum_decides(tmp_path, writer):
    writer(tmp_path, "cifar10")
    with pytest.raises(InvalidInput, match=r"data_batch_1(.bin)?: its MD5 checksum"):
        load("cifar10", "train", tmp_path)


@pytest.mark.skipif("COVPROP_DATA" not in os.environ, reason="needs the real files: COVPROP_DATA")
def test_the_real_files():
    test = load("cifar10", "test")
    assert np.bincount(test.labels).tolist() == [1000] * 10
    assert np.allclose(test.images.float().mean((0, 2, 3)) / 255, (0.494, 0.485, 0.450), atol=1e-3)
