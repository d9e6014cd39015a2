import hashlib
import os
import random
from pathlib import Path

import pytest
from file_server import FileServer

from covprop.data import download
from covprop.data.download import fetch
from covprop.errors import CovpropError, InvalidInput

BODY = random.Random(0).randbytes(300_000)
MD5 = hashlib.md5(BODY).hexdigest()


def get(server: FileServer, folder: Path, **options) -> Path:
    fetch(f"{server.url}/file.bin", folder / "file.bin", MD5, pause=0, **options)
    return folder / "file.bin"


@pytest.mark.parametrize(
    ("fault", "requests"),
    [("", 1), ("cut once", 2), ("deaf", 2), ("long", 1), ("busy once", 2), ("shifted", 2)],
)
def test_the_file_arrives_whole_whatever_the_server_does(tmp_path, fault, requests):
    with FileServer({"file.bin": BODY}, fault) as server:
        assert get(server, tmp_path / "new" / "folder").read_bytes() == BODY
    assert len(server.ranges) == requests
    assert os.listdir(tmp_path / "new" / "folder") == ["file.bin"]


def test_a_cut_download_goes_on_where_it_stopped(tmp_path):
    with FileServer({"file.bin": BODY}, "cut once") as server:
        get(server, tmp_path)
    assert server.ranges == [None, "bytes=150000-"]


def test_every_answer_cut_ends_with_a_sentence_and_a_part(tmp_path):
    body = BODY[:64]
    with FileServer({"file.bin": body}, "cut") as server:
        with pytest.raises(CovpropError, match=r"connection was cut, 6 attempts.*run the same"):
            get(server, tmp_path)
        part = tmp_path / "file.bin.part"
        kept = part.read_bytes()
        assert kept == body[: len(kept)]
        assert len(kept) == 63
        assert not (tmp_path / "file.bin").exists()
        server.fault = ""
        fetch(f"{server.url}/file.bin", tmp_path / "file.bin", hashlib.md5(body).hexdigest())
    assert server.ranges[-1] == "bytes=63-"
    assert (tmp_path / "file.bin").read_bytes() == body


@pytest.mark.parametrize("fault", ["short", ""])
def test_a_wrong_file_is_never_taken(tmp_path, fault):
    body = BODY if fault else BODY[::-1]
    with (
        FileServer({"file.bin": body}, fault) as server,
        pytest.raises(CovpropError, match=f"serves another file: .* official one {MD5}"),
    ):
        get(server, tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("part", [BODY, BODY[:1000], b"x" * 1000, BODY + b"x", b""])
def test_any_part_that_was_left_behind(tmp_path, part):
    (tmp_path / "file.bin.part").write_bytes(part)
    with FileServer({"file.bin": BODY}) as server:
        assert get(server, tmp_path).read_bytes() == BODY


def test_a_part_longer_than_the_file_is_cut_off(tmp_path):
    (tmp_path / "file.bin.part").write_bytes(b"x" * 1000)
    with FileServer({"file.bin": BODY[:64]}, "deaf") as server:
        server.ranges.append(None)  # only the first answer would be cut
        digest = hashlib.md5(BODY[:64]).hexdigest()
        fetch(f"{server.url}/file.bin", tmp_path / "file.bin", digest, pause=0)
    assert (tmp_path / "file.bin").read_bytes() == BODY[:64]
    assert server.ranges == [None, "bytes=1000-"], "one request is enough"


def test_an_absent_file_and_an_absent_server(tmp_path):
    with (
        FileServer({}) as server,
        pytest.raises(CovpropError, match="the server answers 404"),
    ):
        get(server, tmp_path)
    assert len(server.ranges) == 1
    with pytest.raises(CovpropError, match="cannot be reached"):
        get(server, tmp_path)
    with pytest.raises(InvalidInput, match="must begin with http"):
        fetch("file:///etc/passwd", tmp_path / "x", MD5)


def test_progress_is_told(tmp_path):
    seen = []
    with FileServer({"file.bin": BODY}) as server:
        get(server, tmp_path, progress=lambda done, total: seen.append((done, total)))
    assert seen[0] == (0, len(BODY))
    assert seen[-1] == (len(BODY), len(BODY))
    assert seen == sorted(seen)


def test_a_full_disk_is_one_sentence(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(download, "_receive", full)
    with (
        FileServer({"file.bin": BODY}) as server,
        pytest.raises(CovpropError, match=r"file.bin.part cannot be written \(the disk is"),
    ):
        get(server, tmp_path)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("mine")
    with (
        FileServer({"file.bin": BODY}) as server,
        pytest.raises(CovpropError, match="cannot be written"),
    ):
        get(server, tmp_path / "file" / "below")
    assert (tmp_path / "file").read_text() == "mine"
