"""Where a data set lies: the data root, the official layouts below it, and checksums."""

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

from covprop.data.registry import Facts, Layout
from covprop.errors import InvalidInput

CHUNK = 1 << 20


class DataMissing(InvalidInput):
    """A set is not (wholly) there; `state` is "not here", "incomplete" or "half downloaded"."""

    def __init__(self, state: str, sentence: str) -> None:
        super().__init__(sentence)
        self.state = state


class Found(NamedTuple):
    """A layout found on disk: its folder and the files of the split, in the layout's order."""

    folder: Path
    files: tuple[Path, ...]


def data_root(root: Path | str | None = None) -> Path:
    """The folder that holds data sets: `root`, else $COVPROP_DATA, else ./data."""
    if root is not None:
        return Path(root).expanduser()
    return Path(os.environ.get("COVPROP_DATA") or "data").expanduser()


def locate(facts: Facts, split: str, root: Path | str | None = None) -> Found:
    """The first official layout below the root that is complete for `split`."""
    base = data_root(root)
    gaps: list[tuple[Layout, list[str]]] = []
    for layout in facts.layouts:
        wanted = layout.train if split == "train" else layout.test
        files = [_existing(base / layout.folder / name) for name in wanted]
        if all(files):
            return Found(base / layout.folder, tuple(file for file in files if file))
        missing = [name for name, file in zip(wanted, files, strict=True) if not file]
        if len(missing) < len(wanted) or (base / layout.folder).is_dir():
            gaps.append((layout, missing))
    raise _missing(facts, base, gaps)


def _existing(path: Path) -> Path | None:
    packed = path.with_name(path.name + ".gz")
    return path if path.exists() else packed if packed.is_file() else None


def _unfinished(facts: Facts, base: Path) -> Path | None:
    for item in facts.downloads:
        part = base / item.folder / (item.name + ".part")
        if part.exists():
            return part
    return None


def _missing(facts: Facts, base: Path, gaps: list[tuple[Layout, list[str]]]) -> DataMissing:
    how = facts.by_hand or f"run `covprop data get {facts.name} --data {base}`"
    elsewhere = "or point --data or COVPROP_DATA at the folder that holds it"
    part = _unfinished(facts, base)
    if part:
        return DataMissing(
            "half downloaded", f"{facts.name} is only half downloaded ({part}): {how} to go on."
        )
    # `.` is a folder that is always there: it says nothing about the set.
    gaps = [(layout, missing) for layout, missing in gaps if layout.folder != "."]
    if gaps:
        layout, missing = min(gaps, key=lambda gap: len(gap[1]))
        names = ", ".join(missing)
        return DataMissing(
            "incomplete",
            f"{facts.name} is incomplete: {base / layout.folder} lacks {names}; {how}.",
        )
    folders = ", ".join(dict.fromkeys(str(base / layout.folder) for layout in facts.layouts))
    return DataMissing(
        "not here", f"{facts.name} was not found (looked for {folders}): {how}, {elsewhere}."
    )


def check_md5(content: bytes, path: Path, facts: Facts) -> None:
    """Compare a file's (uncompressed) content with the official checksum, where there is one."""
    expected = facts.md5.get(path.name.removesuffix(".gz"))
    if expected is None:
        return
    actual = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if actual != expected:
        raise InvalidInput(
            f"{path}: its MD5 checksum is {actual}, the official {facts.name} file has {expected}; "
            f"it is damaged or another version, move it away and run "
            f"`covprop data get {facts.name}`."
        )


def file_md5(path: Path) -> str:
    """MD5 of a file of any size."""
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
