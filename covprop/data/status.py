"""The state of each registered data set on this machine."""

from pathlib import Path
from typing import NamedTuple

from covprop.data import load
from covprop.data.locate import DataMissing, Found, locate
from covprop.data.registry import Facts
from covprop.errors import CovpropError

SPLITS = ("train", "test")


class Status(NamedTuple):
    """`state` in a word or two, where the set lies, its bytes (None where not counted), and why."""

    state: str
    folder: Path | None
    size: int | None
    detail: str = ""


def status(facts: Facts, root: Path | str | None = None, *, check: bool = False) -> Status:
    """Look for a set below `root`; with `check`, read it and verify every checksum."""
    if not facts.layouts:
        return Status("built in", None, None)
    found: list[Found] = []
    reasons: list[DataMissing] = []
    for split in SPLITS:
        try:
            found.append(locate(facts, split, root))
        except DataMissing as error:
            reasons.append(error)
    if not found:
        return Status(reasons[0].state, None, None, str(reasons[0]))
    folder, size = found[0].folder, _size(found)
    if reasons:
        # One split is there, so the other's absence makes the set incomplete.
        state = reasons[0].state.replace("not here", "incomplete")
        return Status(state, folder, size, str(reasons[0]))
    if not check:
        return Status("here", folder, size)
    try:
        for split in SPLITS:
            load(facts.name, split, root)
    except CovpropError as error:
        return Status("damaged", folder, size, str(error))
    return Status("verified", folder, size)


def _size(found: list[Found]) -> int | None:
    files = {file for one in found for file in one.files}
    # A folder of a million images would take minutes to add up.
    if any(file.is_dir() for file in files):
        return None
    return sum(file.stat().st_size for file in files)
