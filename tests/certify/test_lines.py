"""Lines: whole after a kill or a full disk, of one writer at a time."""

import errno
import os
import resource
from pathlib import Path

import pytest

from covprop.certify import lines
from covprop.certify.lines import Lines, complete_lines, read_text
from covprop.errors import CovpropError, InvalidInput


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "x.rows.jsonl"


def test_lines_are_on_the_disk_at_once_and_after_what_was_there(path: Path) -> None:
    for number, line in enumerate(("one", "zwölf", "")):
        with Lines(path) as file:
            file.append(line)
            assert len(complete_lines(read_text(path))) == number + 1
    assert read_text(path) == "one\nzwölf\n\n"


@pytest.mark.parametrize("left", ["", "one\n", "one\ntwo\n"])
@pytest.mark.parametrize("cut", ["", "t", "tw\u00f6"])
def test_what_was_cut_is_no_line_and_goes(path: Path, left: str, cut: str) -> None:
    path.parent.mkdir()
    path.write_text(left + cut, encoding="utf-8")
    assert complete_lines(read_text(path)) == left.splitlines()
    with Lines(path) as file:
        file.drop_cut_line()
        file.append("next")
    assert read_text(path) == left + "next\n"


def test_a_lock_is_of_one_or_shared_and_ends_with_its_file(path: Path) -> None:
    def lock(shared: bool) -> None:
        with Lines(path) as other:
            other.lock(shared=shared)

    with Lines(path) as file:
        file.lock()
        for shared in (False, True):
            with pytest.raises(InvalidInput, match=r"certifying into .*x\.rows\.jsonl; wait"):
                lock(shared)
    with Lines(path) as file:
        file.lock(shared=True)
        lock(shared=True)
        with pytest.raises(InvalidInput, match="another process"):
            lock(shared=False)
    lock(shared=False)


def test_a_file_system_without_locks_does_without(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(lines.fcntl, "flock", refuse)
    with Lines(path) as file:
        file.lock()
        file.append("one")
    assert read_text(path) == "one\n"


def test_a_full_disk_is_one_sentence_and_leaves_a_cut_line(path: Path) -> None:
    """The limit on file sizes fails as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Lines(path) as file:
        file.append("one")
        resource.setrlimit(resource.RLIMIT_FSIZE, (6, hard))
        try:
            with pytest.raises(CovpropError, match=r"Cannot write .*rows\.jsonl.* free some space"):
                file.append("two")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert read_text(path) == "one\ntw"


def test_what_is_no_text_or_no_place_for_it_is_one_sentence(path: Path) -> None:
    assert read_text(path) == ""
    path.parent.mkdir()
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidInput, match="is not a text file"):
        read_text(path)
    with pytest.raises(InvalidInput, match=r"new cannot be read \(Is a directory\)"):
        read_text(path.parent)
    with pytest.raises(CovpropError, match=r"Cannot write .* \(Is a directory\)"):
        Lines(path.parent)
    with pytest.raises(CovpropError, match=r"Cannot write .*choose a place you can write to"):
        Lines(path / "x")
