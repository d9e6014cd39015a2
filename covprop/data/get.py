"""Get a registered data set: download its official files, unpack them, and verify the result.

Nothing that was there is overwritten: a damaged file or folder is renamed to `NAME.old` first.
"""

import os
import shutil
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path

from covprop.data import load
from covprop.data.download import Progress, fetch
from covprop.data.locate import data_root, file_md5, locate
from covprop.data.registry import DATASETS, Download, Facts
from covprop.errors import CovpropError, InvalidInput
from covprop.names import unknown

Say = Callable[[str], None]


def get(
    name: str,
    root: Path | str | None = None,
    *,
    mirror: str | None = None,
    say: Say = lambda line: None,
    watch: Callable[[str], Progress] = lambda name: lambda done, total: None,
    pause: float = 1.0,
) -> Path:
    """Download data set `name` below `root` and return the folder it lies in.

    Files come from the official address, or from `mirror` (an address to which the official file
    name is appended). `say` hears a line at each step, `watch(file)` gives a progress callback.
    """
    facts = _facts(name)
    base = data_root(root)
    archives = [item for item in facts.downloads if item.unpack]
    marks = {item: base / item.folder / f".unpacked-{item.name}" for item in archives}
    if verified(facts, base):
        _remove(marks.values())
        say(f"{name} is already complete and its checksums fit.")
        return locate(facts, "test", base).folder
    fetched = [
        item for item in facts.downloads if _obtain(item, facts, base, mirror, say, watch, pause)
    ]
    for item, mark in marks.items():
        if mark.exists():  # by a call that was stopped in a later archive
            say(f"{item.name} is already unpacked")
            continue
        say(f"unpacking {item.name}")
        unpack(base / item.folder / item.name, base / item.folder, say)
        mark.touch()
    try:
        for split in ("train", "test"):
            load(name, split, base)
    finally:
        _remove(marks.values())  # what does not pass is unpacked anew next time
    for item in archives:
        # An archive that the user put there stays.
        if item in fetched:
            (base / item.folder / item.name).unlink()
    return locate(facts, "test", base).folder


def _remove(files: Iterable[Path]) -> None:
    for file in files:
        if file.exists():  # a read-only disk refuses even where there is nothing to remove
            file.unlink()


def verified(facts: Facts, base: Path) -> bool:
    """Whether both splits are there and pass every check."""
    try:
        for split in ("train", "test"):
            load(facts.name, split, base)
    except CovpropError:
        return False
    return True


def _facts(name: str) -> Facts:
    if name not in DATASETS:
        raise unknown("registered data set", name, DATASETS)
    facts = DATASETS[name]
    if not facts.layouts:
        raise InvalidInput(f"{name} is built in and needs no download.")
    if not facts.downloads:
        raise InvalidInput(f"{name} may not be downloaded freely: {facts.by_hand}.")
    return facts


def _obtain(
    item: Download,
    facts: Facts,
    base: Path,
    mirror: str | None,
    say: Say,
    watch: Callable[[str], Progress],
    pause: float,
) -> bool:
    """Make sure the official file is there; True if it had to be fetched."""
    target = base / item.folder / item.name
    if target.is_file() and file_md5(target) == item.md5:
        say(f"{item.name} is already there")
        return False
    # A damaged unzipped copy would be preferred to the new file when the set is read.
    for stale in {target, target.with_name(item.name.removesuffix(".gz"))}:
        if stale.is_file() and not _official(stale, facts):
            set_aside(stale, say)
    url = f"{mirror.rstrip('/')}/{item.name}" if mirror else item.url
    say(f"fetching {url}")
    fetch(url, target, item.md5, progress=watch(item.name), pause=pause)
    return True


def _official(path: Path, facts: Facts) -> bool:
    return path.name in facts.md5 and file_md5(path) == facts.md5[path.name]


def set_aside(path: Path, say: Say = lambda line: None) -> Path:
    """Rename to the first free of NAME.old, NAME.old2, …"""
    number = 1
    while (old := path.with_name(f"{path.name}.old{number if number > 1 else ''}")).exists():
        number += 1
    try:
        path.rename(old)
    except OSError as error:
        raise CovpropError(
            f"{path} is damaged or another version and cannot be renamed ({error.strerror}): move "
            "it away, or choose another --data."
        ) from error
    say(f"{path} was damaged or another version; it is kept as {old.name}")
    return old


def unpack(archive: Path, into: Path, say: Say = lambda line: None) -> None:
    """Unpack a tar file; its entries appear in `into` only when all of it could be unpacked."""
    work = into / f".unpacking-{archive.name}"
    shutil.rmtree(work, ignore_errors=True)
    try:
        work.mkdir(parents=True)
        with tarfile.open(archive) as tar:
            # "data" refuses links, devices and paths that lead out of the folder.
            tar.extractall(work, filter="data")
        for entry in sorted(work.iterdir()):
            place = into / entry.name
            if place.exists():
                set_aside(place, say)
            os.replace(entry, place)
    except (tarfile.TarError, EOFError) as error:
        raise CovpropError(
            f"{archive} cannot be unpacked ({error}): delete it and run the same command again."
        ) from error
    except OSError as error:
        raise CovpropError(
            f"{archive} cannot be unpacked into {into} ({error.strerror}): free space or choose "
            "another --data, then run the same command again."
        ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
