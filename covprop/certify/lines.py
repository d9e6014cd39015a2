"""A file that grows line by line: one process at a time, and no complete line is ever lost.

A process that is killed while it writes leaves a last line without a line end. Readers ignore such
a line, and the next writer drops it.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from covprop.errors import InvalidInput
from covprop.files import unwritable


class Lines:
    """An open file of lines, created if need be. Use as a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered: what a full disk refused would be written once more, and fail, on closing.
            self.file = path.open("a+b", buffering=0)
        except OSError as error:
            raise unwritable(path, error) from error

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *exception: object) -> None:
        self.file.close()

    def lock(self, *, shared: bool = False) -> None:
        """Keep other processes out, which would certify everything twice, until this one ends."""
        try:
            fcntl.flock(self.file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidInput(
                f"another process is certifying into {self.path}; wait for it, or choose another "
                "--out."
            ) from None
        except OSError:
            pass  # a file system without locks

    def drop_cut_line(self) -> None:
        """Drop an incomplete last line."""
        self.file.seek(0)
        content = self.file.read()
        if not content.endswith(b"\n"):
            self.file.truncate(content.rfind(b"\n") + 1)

    def append(self, line: str) -> None:
        """Add a line; it is on the disk when this returns."""
        rest = line.encode() + b"\n"
        try:
            while rest:  # a disk that is nearly full takes part of it
                rest = rest[self.file.write(rest) :]
            os.fsync(self.file.fileno())
        except OSError as error:
            raise unwritable(self.path, error) from error


def read_text(path: Path) -> str:
    """All that a file holds, nothing where there is none, or one sentence if it is no text."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError:
        raise InvalidInput(f"{path} is not a text file; choose another file with --out.") from None
    except OSError as error:
        raise InvalidInput(
            f"{path} cannot be read ({error.strerror}); choose another file with --out."
        ) from None


def complete_lines(text: str) -> list[str]:
    r"""The lines that have an end.

    >>> complete_lines("one\ntwo\nthr")
    ['one', 'two']
    """
    return text.split("\n")[:-1]
