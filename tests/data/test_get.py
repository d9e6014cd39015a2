import dataclasses
import errno
import gzip
import hashlib
import io
import os
import struct
import tarfile

import pytest
from file_server import FileServer

from covprop.data import load, registry
from covprop.data.get import get, set_aside, unpack
from covprop.data.registry import DATASETS, Download
from covprop.errors import CovpropError, InvalidInput


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def tar(entries: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as file:
        for name, content in entries.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture
def cifar(monkeypatch) -> dict[str, bytes]:
    """A CIFAR-100 of three images behind the official name; returns what a mirror serves."""
    train = b"".join(bytes([0, label]) + bytes([label]) * 3072 for label in (5, 6))
    files = {"train.bin": train, "test.bin": bytes([0, 99]) + bytes(3072)}
    archive = tar({f"cifar-100-binary/{name}": content for name, content in files.items()})
    facts = dataclasses.replace(
        DATASETS["cifar100"],
        train_size=2,
        test_size=1,
        md5={name: md5(content) for name, content in files.items()},
        downloads=(dataclasses.replace(DATASETS["cifar100"].downloads[0], md5=md5(archive)),),
    )
    monkeypatch.setitem(registry.DATASETS, "cifar100", facts)
    return {facts.downloads[0].name: archive}


@pytest.fixture
def mnist(monkeypatch) -> dict[str, bytes]:
    sizes = {"train": 3, "t10k": 2}
    raw = {}
    for kind, n in sizes.items():
        raw[f"{kind}-images-idx3-ubyte"] = struct.pack(">4I", 0x803, n, 28, 28) + bytes(784 * n)
        raw[f"{kind}-labels-idx1-ubyte"] = struct.pack(">2I", 0x801, n) + bytes(range(n))
    served = {f"{name}.gz": gzip.compress(content) for name, content in raw.items()}
    facts = dataclasses.replace(
        DATASETS["mnist"],
        md5={name: md5(content) for name, content in raw.items()},
        downloads=tuple(
            Download(f"http://nowhere.invalid/{name}", md5(content), "mnist")
            for name, content in served.items()
        ),
    )
    monkeypatch.setitem(registry.DATASETS, "mnist", facts)
    return served


def test_an_archive_is_fetched_unpacked_and_removed(tmp_path, cifar):
    said = []
    with FileServer(cifar) as server:
        folder = get("cifar100", tmp_path, mirror=server.url, say=said.append, pause=0)
        assert folder == tmp_path / "cifar-100-binary"
        assert sorted(os.listdir(tmp_path)) == ["cifar-100-binary"]
        assert load("cifar100", "train", tmp_path).labels.tolist() == [5, 6]
        get("cifar100", tmp_path, mirror=server.url, say=said.append, pause=0)
    assert len(server.ranges) == 1
    assert said[-1] == "cifar100 is already complete and its checksums fit."


@pytest.fixture
def places(monkeypatch) -> dict[str, bytes]:
    """A Places365 of two classes and three images in its three archives."""
    served = {
        "filelist_places365-standard.tar": tar(
            {
                "categories_places365.txt": b"/a/airfield 0\n/a/alley 1\n",
                "places365_train_standard.txt": b"/a/airfield/1.jpg 0\n/a/alley/1.jpg 1\n",
                "places365_val.txt": b"1.jpg 1\n",
            }
        ),
        "val_256.tar": tar({"val_256/1.jpg": b"v"}),
        "train_256_places365standard.tar": tar(
            {"data_256/a/airfield/1.jpg": b"1", "data_256/a/alley/1.jpg": b"2"}
        ),
    }
    whole = DATASETS["places365"]
    parts = tuple(dataclasses.replace(d, md5=md5(served[d.name])) for d in whole.downloads)
    changes = {"num_classes": 2, "train_size": 2, "test_size": 1, "downloads": parts}
    monkeypatch.setitem(registry.DATASETS, "places365", dataclasses.replace(whole, **changes))
    return served


def test_what_is_unpacked_is_not_unpacked_again(tmp_path, places, monkeypatch):
    def stopped(archive, into, say):
        if archive.name.startswith("train"):
            raise KeyboardInterrupt
        unpack(archive, into, say)

    said = []
    with FileServer(places) as server:
        with monkeypatch.context() as patch:
            patch.setattr("covprop.data.get.unpack", stopped)
            with pytest.raises(KeyboardInterrupt):
                get("places365", tmp_path, mirror=server.url, pause=0)
        get("places365", tmp_path, mirror=server.url, say=said.append, pause=0)
    assert [line for line in said if line.startswith("unpacking")] == [
        "unpacking train_256_places365standard.tar"
    ]
    assert load("places365", "train", tmp_path).labels.tolist() == [0, 1]
    left = {p.name for p in (tmp_path / "places365").iterdir()}
    assert not any(name.startswith(".") or ".old" in name for name in left), left


def test_a_mark_does_not_outlive_a_complete_set(tmp_path, cifar):
    """Stopped after the last archive, before its mark was removed."""
    with FileServer(cifar) as server:
        get("cifar100", tmp_path, mirror=server.url, pause=0)
    (tmp_path / ".unpacked-cifar-100-binary.tar.gz").touch()
    get("cifar100", tmp_path)
    assert os.listdir(tmp_path) == ["cifar-100-binary"]


def test_a_complete_set_may_lie_on_a_read_only_disk(tmp_path, cifar, monkeypatch):
    with FileServer(cifar) as server:
        folder = get("cifar100", tmp_path, mirror=server.url, pause=0)

    def refused(path, *args, **options):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    for change in ("unlink", "mkdir", "rename", "replace"):
        monkeypatch.setattr(os, change, refused)
    assert get("cifar100", tmp_path) == folder


def test_what_does_not_pass_is_unpacked_again(tmp_path, places, monkeypatch):
    """A mark that something is unpacked does not outlive a check that it fails."""
    for name, content in places.items():
        (tmp_path / "places365").mkdir(exist_ok=True)
        (tmp_path / "places365" / name).write_bytes(content)
        (tmp_path / "places365" / f".unpacked-{name}").touch()
    with pytest.raises(InvalidInput, match="places365"):
        get("places365", tmp_path)
    get("places365", tmp_path)
    assert load("places365", "test", tmp_path).labels.tolist() == [1]


def test_a_damaged_set_is_kept_aside_and_replaced(tmp_path, cifar):
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    (folder / "train.bin").write_bytes(b"mine")
    with FileServer(cifar) as server:
        get("cifar100", tmp_path, mirror=server.url + "/", pause=0)
    assert (tmp_path / "cifar-100-binary.old" / "train.bin").read_bytes() == b"mine"
    assert load("cifar100", "test", tmp_path).labels.tolist() == [99]


def test_an_archive_put_there_by_hand_is_used_and_kept(tmp_path, cifar):
    (name, archive), *_ = cifar.items()
    (tmp_path / name).write_bytes(archive)
    get("cifar100", tmp_path, mirror="http://nowhere.invalid")
    assert (tmp_path / name).read_bytes() == archive
    assert len(load("cifar100", "train", tmp_path)) == 2


def test_a_failed_download_leaves_what_was_there(tmp_path, cifar):
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    (folder / "train.bin").write_bytes(b"mine")
    (name, _), *_ = cifar.items()
    with (
        FileServer({name: b"another file"}) as server,
        pytest.raises(CovpropError, match="serves another file"),
    ):
        get("cifar100", tmp_path, mirror=server.url, pause=0)
    assert (folder / "train.bin").read_bytes() == b"mine"


def test_single_files_missing_or_damaged(tmp_path, mnist):
    folder = tmp_path / "mnist"
    folder.mkdir()
    labels = "train-labels-idx1-ubyte"
    (folder / f"{labels}.gz").write_bytes(mnist[f"{labels}.gz"])
    (folder / "t10k-images-idx3-ubyte").write_bytes(b"damaged, and not zipped")
    whole = gzip.decompress(mnist["t10k-labels-idx1-ubyte.gz"])
    (folder / "t10k-labels-idx1-ubyte").write_bytes(whole)
    with FileServer(mnist) as server:
        get("mnist", tmp_path, mirror=server.url, pause=0)
    assert len(server.ranges) == 3
    assert (folder / "t10k-images-idx3-ubyte.old").read_bytes() == b"damaged, and not zipped"
    assert (folder / "t10k-labels-idx1-ubyte").read_bytes() == whole, "a good file stays in place"
    assert load("mnist", "train", tmp_path).labels.tolist() == [0, 1, 2]
    assert load("mnist", "test", tmp_path).labels.tolist() == [0, 1]


def test_half_a_download_is_named_at_load(tmp_path, mnist):
    with FileServer(mnist, "cut") as server:
        with pytest.raises(CovpropError):
            get("mnist", tmp_path, mirror=server.url, pause=0)
        with pytest.raises(InvalidInput, match=r"mnist is only half downloaded \(.*gz\.part\)"):
            load("mnist", "train", tmp_path)
        server.fault = ""
        get("mnist", tmp_path, mirror=server.url, pause=0)
    assert len(load("mnist", "train", tmp_path)) == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("digits", "built in"),
        ("imagenet", "may not be downloaded freely: register"),
        ("cifar-10", "did you mean .cifar10"),
        ("xyz", "choose one of digits, mnist"),
    ],
)
def test_what_cannot_be_fetched(tmp_path, name, message):
    with pytest.raises(InvalidInput, match=message):
        get(name, tmp_path)


def link(target: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as file:
        info = tarfile.TarInfo("link")
        info.type, info.linkname = tarfile.SYMTYPE, target
        file.addfile(info)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content",
    [tar({"a": b"1", "../escaped": b"2"}), link("/etc/passwd"), tar({"a": b"1" * 9999})[:-30]],
    ids=["escapes", "links", "cut"],
)
def test_an_unsafe_or_damaged_archive_leaves_nothing(tmp_path, content):
    folder = tmp_path / "into"
    folder.mkdir()
    (folder / "x.tar.gz").write_bytes(content)
    with pytest.raises(CovpropError, match="cannot be unpacked"):
        unpack(folder / "x.tar.gz", folder)
    assert os.listdir(folder) == ["x.tar.gz"]
    assert os.listdir(tmp_path) == ["into"]


def test_set_aside_never_overwrites(tmp_path):
    for content in ("1", "2", "3"):
        (tmp_path / "a").write_text(content)
        set_aside(tmp_path / "a")
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {
        "a.old": "1",
        "a.old2": "2",
        "a.old3": "3",
    }


def test_every_download_has_a_checksum_and_a_place():
    for facts in DATASETS.values():
        for item in facts.downloads:
            assert len(bytes.fromhex(item.md5)) == 16
            assert item.url.startswith("http")
