"""A measurement on paper: a table on the terminal, JSON, Markdown and figures on disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from covprop.bench.machine import Facts
from covprop.bench.timing import Timing
from covprop.files import write


@dataclass
class Table:
    """A table of strings; the first `left` columns are words, the others figures."""

    title: str
    columns: Sequence[str]
    rows: list[list[str]]
    left: int = 1

    def markdown(self) -> str:
        rule = ["---"] * self.left + ["---:"] * (len(self.columns) - self.left)
        lines = [self.columns, rule, *self.rows]
        text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"## {self.title}\n\n{text}\n"

    def print(self, console: Console) -> None:
        table = RichTable(title=self.title, title_justify="left")
        for number, column in enumerate(self.columns):
            table.add_column(
                column, justify="left" if number < self.left else "right", overflow="fold"
            )
        for row in self.rows:
            table.add_row(*row)
        console.print(table)


@dataclass
class Report:
    """What was measured, where, and how."""

    verb: str
    name: str  # of the subject, fit for a file
    facts: Facts
    settings: dict[str, Any]
    rows: list[dict[str, Any]]
    tables: list[Table]
    notes: list[str] = field(default_factory=list)
    figures: Callable[[], dict[str, bytes]] = dict  # drawn only when they are written

    def print(self, console: Console) -> None:
        for table in self.tables:
            table.print(console)
        for note in self.remarks():
            console.print(note, highlight=False, soft_wrap=True)

    def machine(self) -> str:
        """Hardware and versions in a sentence."""
        f = self.facts
        cuda = f"CUDA {f['cuda']}, " if "cuda" in f else ""
        return (
            f"Measured on {f['device']} ({f['cores']} cores, {f['threads']} threads, load "
            f"{f['load']}), torch {f['torch']}, {cuda}commit {f['commit'] or 'unknown'}, "
            f"{f['date']}."
        )

    def remarks(self) -> list[str]:
        """Machine and notes, and a warning where others were using the machine."""
        load, cores = float(self.facts["load"] or 0), int(self.facts["cores"] or 1)
        busy = "cuda" not in self.facts and load > 0.75 * cores
        warning = f"The machine was busy (load {load} on {cores} cores): measure on a quiet one."
        return [self.machine(), *([warning] if busy else []), *self.notes]

    def json(self) -> str:
        document = {
            "measured": self.verb,
            "subject": self.name,
            "machine": self.facts,
            "settings": self.settings,
            "rows": self.rows,
            "notes": self.notes,
        }
        return json.dumps(document, indent=1, allow_nan=False) + "\n"

    def markdown(self, figures: Iterable[str] = ()) -> str:
        parts = [f"# covprop bench {self.verb}: {self.name}\n"]
        parts += [table.markdown() for table in self.tables]
        parts += [f"![{name}]({self.stem}-{name}.svg)\n" for name in figures]
        parts += ["\n".join(f"- {note}" for note in self.remarks()) + "\n"]
        parts += [f"```\n{self.facts['command']}\n```\n"]
        return "\n".join(parts)

    @property
    def stem(self) -> str:
        device = str(self.facts["device"]).lower()
        slug = "-".join("".join(c if c.isalnum() else " " for c in device).split())
        return f"{self.verb}_{self.name}_{slug}"

    def save(self, folder: Path, figures: bool = True) -> list[Path]:
        """Write JSON, Markdown and figures; each file whole or not at all."""
        drawn = self.figures() if figures else {}
        files = {".json": self.json().encode(), ".md": self.markdown(drawn).encode()}
        files |= {f"-{name}.svg": image for name, image in drawn.items()}
        return [write(folder / f"{self.stem}{suffix}", file) for suffix, file in files.items()]


def milliseconds(time: Timing) -> str:
    """Median and quantiles as `12.3 (12.1–12.8)` milliseconds."""
    return f"{_ms(time.median)} ({_ms(time.low)}–{_ms(time.high)})"


def _ms(seconds: float) -> str:
    value = 1000 * seconds
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def mebibytes(count: int | None) -> str:
    return "–" if count is None else f"{count / 2**20:,.0f}"
