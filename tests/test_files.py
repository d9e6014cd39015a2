"""Files are replaced whole or not at all, and what cannot be written is one sentence."""

import errno
import os
import stat
from pathlib import Path

import pytest
from processes import run_python

from covprop import files
from covprop.errors import CovpropError


def test_a_file_is_replaced_and_its_folder_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    for content in (b"old", b"new"):
        assert files.write(path, content) == path
        assert path.read_bytes() == content
    assert os.listdir(path.parent) == ["file"]


def test_what_is_no_place_for_a_file_is_one_sentence(tmp_path: Path) -> None:
    for folder in (tmp_path, Path(), Path("/"), tmp_path / ".."):
        with pytest.raises(
            CovpropError, match=r"Cannot write .* \(Is a directory\); give the name of a file"
        ):
            files.write(folder, b"")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CovpropError, match=r"x\.json .* choose a place you can write to"):
        files.write(tmp_path / "file" / "x.json", b"")
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_failing_disk_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    path = tmp_path / "state.pt"
    files.write(path, b"old")

    def fail(handle: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(CovpropError) as caught:
        files.write(path, b"new")
    message = str(caught.value)
    assert str(path) in message
    assert os.strerror(code) in message
    assert ("free some space" in message) == (code == errno.ENOSPC)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["state.pt"]


def test_two_that_write_at_once_do_not_share_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second begins and ends while the first has its bytes on the disk but not in place."""
    path, replace = tmp_path / "file", os.replace

    def late(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "replace", replace)
        files.write(path, b"second")
        assert path.read_bytes() == b"second"
        replace(source, target)

    monkeypatch.setattr(os, "replace", late)
    files.write(path, b"first")
    assert path.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["file"]


def test_an_interrupt_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.pt"
    files.write(path, b"old")

    def interrupt(handle: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        files.write(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["state.pt"]


def test_a_folder_that_cannot_be_synced_holds_the_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some network file systems refuse it; the file is in its place by then, so all is well."""
    path, sync = tmp_path / "file", os.fsync

    def refuse_folders(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        sync(handle)

    monkeypatch.setattr(os, "fsync", refuse_folders)
    for content in (b"old", b"new"):
        assert files.write(path, content) == path
        assert path.read_bytes() == content


def test_an_own_set_was_moved_if_one_of_its_places_is_gone(tmp_path: Path) -> None:
    there, gone, also = (tmp_path / name for name in ("there", "gone", "also"))
    for path in (there, also):
        path.touch()
    here = {"data": str(there), "images": "hash"}
    for place, moved in ((gone, True), (also, False), (there, False)):
        before = {"data": str(place), "images": "hash"}
        assert files.moved(before, here) == files.moved(here, before) == moved
    assert not files.moved({"data": str(gone)}, here)  # nothing says that they are the same


def test_a_full_disk_for_real(tmp_path: Path) -> None:
    """The kernel itself refuses to write beyond a limit, in the middle of the file."""
    path = tmp_path / "state.pt"
    path.write_bytes(b"old")
    code = (
        "import resource; from covprop import files\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "files.write(path, b'x' * 10000)\n"
    )
    done = run_python(code, path)
    assert "CovpropError: Cannot write" in done.stderr
    assert "free some space" in done.stderr
    assert path.read_bytes() == b"old"
