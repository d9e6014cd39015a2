"""Reads one certification log in the field's format: idx, label, predict, radius, correct, time."""

import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from covprop.errors import InvalidInput

HEADER = ("idx", "label", "predict", "radius", "correct", "time")
ABSTAIN = -1
LARGEST = 2**63 - 1
ROUNDED = 1.005  # a log keeps three significant digits, so a radius may be so much above its own

_CLOCK = re.compile(r"(\d+):(\d\d):(\d\d(?:\.\d+)?)")


@dataclass(frozen=True)
class Rows:
    """The rows of one log as columns; entry i of each array belongs to one image."""

    idx: NDArray[np.int64]
    label: NDArray[np.int64]
    predict: NDArray[np.int64]
    radius: NDArray[np.float64]  # certified radius; 0 where there is none
    correct: NDArray[np.bool_]
    seconds: NDArray[np.float64]
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.idx)

    @property
    def abstained(self) -> NDArray[np.bool_]:
        return self.predict == ABSTAIN

    @property
    def skipped(self) -> NDArray[np.bool_]:
        """Wrong guesses that were not bounded: a class that is certified has a radius above 0."""
        return ~self.correct & ~self.abstained & (self.radius == 0)


def parse_seconds(text: str) -> float:
    """Seconds from either form in use, plain (`15.4`) or a clock (`0:00:15.400000`).

    >>> parse_seconds("0:01:02.5"), parse_seconds("62.5")
    (62.5, 62.5)
    """
    clock = _CLOCK.fullmatch(text)
    if clock:
        hours, minutes, seconds = clock.groups()
        return int(hours) * 3600 + int(minutes) * 60 + float(seconds)
    return float(text)


def read_text(path: Path) -> str:
    """The text of a file, or one sentence on why it cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidInput(f"{path} is not a text file; give a run folder or a TSV log.") from None
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}.") from None


def has_header(path: Path) -> bool:
    """Whether a file opens like a certification log."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            return tuple(file.readline().split()) == HEADER
    except (OSError, UnicodeDecodeError):
        return False


def read_tsv(path: Path, most: float = math.inf) -> Rows:
    """Read a certification log in which no radius can be above `most`.

    A last line that was cut off while it was being written is left out with a warning; any other
    fault is the user's to mend and raises `InvalidInput` with the line's number.
    """
    text = read_text(path)
    if not text.strip():
        raise InvalidInput(f"{path} is empty; certify the run again, or leave the file out.")
    lines = text.splitlines()
    if tuple(lines[0].split()) != HEADER:
        raise InvalidInput(
            f"{path} is not a certification log: its first line must hold the tab-separated "
            f"names {' '.join(HEADER)}, but it reads {lines[0][:60]!r}."
        )
    values: list[tuple[int, int, int, float, int, float]] = []
    warnings: list[str] = []
    seen: dict[int, int] = {}
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        try:
            row = _parse(line, most)
        except ValueError as error:
            if number == len(lines) and not text.endswith("\n"):
                warnings.append(
                    f"{path}: the last line ({number}) is cut off and was left out; certifying "
                    "again with the same options completes the log."
                )
                break
            raise InvalidInput(
                f"{path}, line {number}: {error}; correct or remove that line."
            ) from None
        if row[0] in seen:
            raise InvalidInput(
                f"{path} holds image {row[0]} twice, in lines {seen[row[0]]} and {number}; "
                "remove one of them."
            )
        seen[row[0]] = number
        values.append(row)
    if not values:
        raise InvalidInput(f"{path} holds no complete row yet; certify the run first.")
    return _columns(values, tuple(warnings))


def _parse(line: str, most: float) -> tuple[int, int, int, float, int, float]:
    """One row; raises ValueError with the reason."""
    fields = line.split("\t")
    if len(fields) != len(HEADER):
        raise ValueError(f"{len(HEADER)} tab-separated fields expected, {len(fields)} found")
    try:
        idx, label, predict, correct = (int(fields[i]) for i in (0, 1, 2, 4))
        radius, seconds = float(fields[3]), parse_seconds(fields[5].strip())
    except ValueError as error:
        raise ValueError(f"not a number where one is expected ({error})") from None
    if not math.isfinite(seconds):
        raise ValueError(f"the time must be finite, not {fields[5].strip()}")
    if max(map(abs, (idx, label, predict))) > LARGEST:
        raise ValueError("idx, label or predict is too large to number an image or a class")
    if correct not in (0, 1):
        raise ValueError(f"correct must be 0 or 1, not {correct}")
    if not math.isfinite(radius) or radius < 0:
        raise ValueError(f"radius must be finite and at least 0, not {fields[3]}")
    if radius > most * ROUNDED:
        raise ValueError(
            f"radius {fields[3]} is above {most:.3g}, the most that the samples told of in the "
            "log's .json can certify"
        )
    if predict == ABSTAIN and (correct or radius > 0):
        raise ValueError("an abstention (predict -1) has radius 0 and is not correct")
    if correct != (predict == label):
        raise ValueError(f"correct is {correct} where predict is {predict} and label {label}")
    return idx, label, predict, radius, correct, seconds


def _columns(
    values: list[tuple[int, int, int, float, int, float]], warnings: tuple[str, ...]
) -> Rows:
    idx, label, predict, radius, correct, seconds = zip(*values, strict=True)
    return Rows(
        idx=np.array(idx, dtype=np.int64),
        label=np.array(label, dtype=np.int64),
        predict=np.array(predict, dtype=np.int64),
        radius=np.array(radius, dtype=np.float64),
        correct=np.array(correct, dtype=np.bool_),
        seconds=np.array(seconds, dtype=np.float64),
        warnings=warnings,
    )
