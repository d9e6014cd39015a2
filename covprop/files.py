"""Files that survive whatever happens: written beside, synced, then moved into place."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from covprop.errors import CovpropError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write(path: Path, content: bytes) -> Path:
    """Replace `path` by `content`, or leave it exactly as it was; its folder is made if need be.

    A reader sees the old file or the new one, also after a power cut: the bytes are on the disk
    before the name points to them. Of two that write the same file at once, the last one's stays.
    """
    if os.path.isdir(path):  # also ".", which has no name to write beside
        raise unwritable(path, IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)))
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:  # also when interrupted; once moved into place, there is nothing left to remove
        with suppress(OSError):
            beside.unlink(missing_ok=True)
    with suppress(OSError):  # not every file system syncs folders; the new file is there already
        _sync_folder(path.parent)
    return path


def moved(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two side-cars may name one own set of images by two places: one of them is gone.

    Where both are there they are two sets, though their `images` agree: of class folders that is a
    hash of the files' names, which a corrupted copy has too.
    """
    known = "images" in one and "images" in other
    return known and not all(os.path.exists(str(its.get("data"))) for its in (one, other))


def unwritable(path: Path, error: OSError) -> CovpropError:
    """The sentence for a file that the disk, or its owner, does not let us write."""
    remedy = "choose a place you can write to (--out)"
    if error.errno in FULL:
        remedy = "free some space"
    elif error.errno == errno.EISDIR:
        remedy = "give the name of a file"
    return CovpropError(
        f"Cannot write {path} ({error.strerror}); {remedy} and run the same command again: "
        "what was there before is intact."
    )


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
