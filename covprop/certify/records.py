"""Certification logs that survive a kill at any moment.

Beside the log in the field's own format, `X.tsv`, lie `X.rows.jsonl`, the journal (the same rows
in full precision, with p_lower, count, n and nan), and `X.json` (what every row was certified
with; once all rows are there, also how many guesses were not bounded, if wrong ones were skipped).
The journal is the truth: a row is there once its line is complete, and the TSV is put right
from it on every start. Several processes write a journal each (`X.rank1.rows.jsonl`), which the
last one to finish merges.
"""

import glob
import json
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Generic

from covprop.certify.lines import Lines, complete_lines, read_text
from covprop.certify.rows import AnyRow
from covprop.errors import InvalidInput
from covprop.files import moved, unwritable, write

OF_A_LOG = {"sigma", "n"}
"""In the settings beside every log."""
REMEDY = "choose another file with --out, or begin anew with --restart (which keeps the old log)."
NOT_BOUNDED = "not_bounded"
NOTES = (NOT_BOUNDED, "epochs", "epochs_planned")
"""What X.json says besides what a row depends on: of the rows, and of a run still in training."""
LATER = ("model_code",)
"""Settings that earlier versions did not keep; a log of theirs goes on without."""


class Log(Generic[AnyRow]):
    """An open log: `done` maps the indices certified so far to their rows; `append` adds rows.

    Use as a context manager. `settings` are what a row depends on (σ, α, n, weights …); a log
    made with others is refused, whole and untouched.
    """

    def __init__(
        self,
        path: Path,
        settings: Mapping[str, Any],
        kind: type[AnyRow],
        *,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.path, self.settings = path, dict(settings)
        self.kind: type[AnyRow] = kind
        self.rank, self.world = rank, world
        self.alone = world == 1
        self.meta_path = path.with_suffix(".json")
        self.main_path = path.with_suffix(".rows.jsonl")
        self.journal_path = (
            self.main_path if self.alone else path.with_suffix(f".rank{rank}.rows.jsonl")
        )
        self.done: dict[int, AnyRow] = {}
        self.unknown: list[str] = []  # of LATER, what the log that is there does not say
        self.files = ExitStack()

    def __enter__(self) -> "Log[AnyRow]":
        with ExitStack() as files:
            self._check_settings()
            self._check_tsv()
            if not self.alone:
                files.enter_context(Lines(self.main_path)).lock(shared=True)
            self.journal = files.enter_context(Lines(self.journal_path))
            self.journal.lock()
            self.journal.drop_cut_line()
            if NOT_BOUNDED in _read_meta(self.meta_path):
                self._write_meta()  # the number holds until rows are added
            self.done = self._read_all()
            if self.alone:
                self._absorb(files)
                self.tsv = files.enter_context(Lines(self.path))
            self.files = files.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self.files.close()

    def set_aside(self) -> Path | None:
        """Rename a log that is there, so that a new one can begin; returns its new place.

        Not to be called by one of several processes: others may have begun already.
        """
        self._check_header()
        places = (self.path, self.meta_path, self.main_path, *self._parts())
        number = 1
        while any(_old(place, number).exists() for place in places):
            number += 1
        there = [place for place in places if place.is_file()]
        with ExitStack() as files:
            if self.main_path in there:  # a log that is being written must stay where it is
                files.enter_context(Lines(self.main_path)).lock()
            for place in there:
                try:
                    place.rename(_old(place, number))
                except OSError as error:
                    raise unwritable(_old(place, number), error) from error
        return _old(there[0], number) if there else None

    def append(self, row: AnyRow) -> None:
        """Add a row; it is on disk when this returns."""
        self.journal.append(json.dumps(asdict(row)))
        if self.alone:
            self.tsv.append(row.tsv())
        self.done[row.idx] = row

    def finish(self, wanted: Iterable[int]) -> list[AnyRow] | None:
        """Close, and return the rows in order; None while other processes still have rows to add.

        Every process calls this when it has no image left. Whoever finds all rows in the journals
        merges them; if two do, they write the same.
        """
        self.files.close()
        self.done = self._read_all()
        if not set(wanted) <= self.done.keys():
            return None
        self._write_all()
        return [self.done[i] for i in sorted(wanted)]

    def _read_all(self) -> dict[int, AnyRow]:
        rows: dict[int, AnyRow] = {}
        # The parts first: another process that merges fills the main journal before dropping them.
        for path in [*self._parts(), self.main_path]:
            for row in _read_journal(path, self.kind):
                rows.setdefault(row.idx, row)
        return rows

    def _parts(self) -> list[Path]:
        stem = self.path.with_suffix("").name
        return sorted(self.path.parent.glob(f"{glob.escape(stem)}.rank*.rows.jsonl"))

    def _absorb(self, files: ExitStack) -> None:
        """Take over the journals that several processes left, unless they are still running."""
        parts = self._parts()
        for part in parts:
            files.enter_context(Lines(part)).lock()
        if parts:
            # Appended, not rewritten: the lock is on this very file.
            here = {row.idx for row in _read_journal(self.journal_path, self.kind)}
            for row in (self.done[i] for i in sorted(self.done) if i not in here):
                self.journal.append(json.dumps(asdict(row)))
        if self._tsv_text() != read_text(self.path):
            write(self.path, self._tsv_text().encode())
        for part in parts:
            part.unlink(missing_ok=True)

    def _write_all(self) -> None:
        lines = "".join(json.dumps(asdict(self.done[i])) + "\n" for i in sorted(self.done))
        if read_text(self.main_path) != lines:
            write(self.main_path, lines.encode())
        if read_text(self.path) != self._tsv_text():
            write(self.path, self._tsv_text().encode())
        if self.settings.get("skip_wrong"):
            self._write_meta(**{NOT_BOUNDED: sum(row.n == 0 for row in self.done.values())})
        for part in self._parts():
            part.unlink(missing_ok=True)

    def _write_meta(self, **more: int) -> None:
        kept = {key: value for key, value in self.settings.items() if key not in self.unknown}
        text = json.dumps({**kept, **more}, indent=1) + "\n"
        write(self.meta_path, text.encode())

    def _tsv_text(self) -> str:
        rows = (self.done[i].tsv() for i in sorted(self.done))
        return "\n".join([self.kind.HEADER, *rows]) + "\n"

    def _check_settings(self) -> None:
        """Refuse a log made with other settings; write the settings beside a new one."""
        self._check_header()
        meta = self.meta_path
        if not meta.exists():
            if not complete_lines(read_text(self.path))[1:] and not self._read_all():
                self._write_meta()
                return
            raise InvalidInput(
                f"{self.path} holds rows, but {meta.name}, which says what they were certified "
                f"with, is missing; {REMEDY}"
            )
        found = _read_meta(meta)
        self.unknown = [key for key in LATER if key not in found]
        for key in [*self.settings, *found]:
            if key in NOTES or key in self.unknown:
                continue
            if key == "data" and moved(found, self.settings):
                continue  # an own set is known by its images, wherever it lies now
            if found.get(key) != self.settings.get(key):
                raise InvalidInput(
                    f"{self.path} was certified with {key} = {_show(found.get(key))}, not "
                    f"{_show(self.settings.get(key))}, and rows of two kinds do not mix; {REMEDY}"
                )
        if found.get("data") != self.settings.get("data"):  # else a third place would do as well
            self._write_meta()

    def _check_header(self) -> None:
        """Refuse a file that is no log."""
        text = read_text(self.path)
        lines = complete_lines(text)
        header = self.kind.HEADER
        if (lines and lines[0] != header) or not (lines or header.startswith(text)):
            raise InvalidInput(
                f"{self.path} is not a certification log: its first line should read "
                f"{header.split()}, separated by tabs; choose another file with --out."
            )
        if self.meta_path.exists() and not _read_meta(self.meta_path).keys() >= OF_A_LOG:
            raise InvalidInput(
                f"{self.meta_path}, where the settings of the log would go, holds something else; "
                "choose another file with --out."
            )

    def _check_tsv(self) -> None:
        """Refuse a TSV that holds rows no journal knows: writing over it would lose them."""
        self._check_header()
        lines = complete_lines(read_text(self.path))
        known = {row.tsv() for row in self._read_all().values()}
        strange = [line for line in lines[1:] if line not in known]
        if strange:
            raise InvalidInput(
                f"{self.path} holds a row for image {strange[0].split()[0]} that is not in "
                f"{self.main_path.name}; rows of another run do not mix: {REMEDY}"
            )


def _read_meta(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InvalidInput(f"{path} is damaged; restore it, {REMEDY}")
    return found


def _old(path: Path, number: int) -> Path:  # does not end in .tsv, so it is in no report
    return path.with_name(f"{path.name}.old-{number}")


def _read_journal(path: Path, kind: type[AnyRow]) -> list[AnyRow]:
    rows = []
    for number, line in enumerate(complete_lines(read_text(path)), start=1):
        try:
            rows.append(kind(**json.loads(line)))
        except (ValueError, TypeError):
            raise InvalidInput(
                f"{path}, line {number} is not a row of this program; remove that line and it is "
                f"certified again."
            ) from None
    return rows


def _show(value: Any) -> str:
    if value is None:
        return "unset"
    hashed = isinstance(value, str) and len(value) > 16 and value.isalnum()
    return f"{value[:12]}…" if hashed else f"{value}"
