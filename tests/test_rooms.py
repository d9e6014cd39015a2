"""Every part of the package knows only what it should: no import leads where it must not."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import covprop

PACKAGE = Path(covprop.__file__).parent
ON_TOP = {
    *("train", "noisy", "cli", "report", "bench", "explore", "inspect"),
    *("run", "checkpoints", "exports"),
}
UNKNOWN_TO = {
    "data": {"models", "kernels", "propagate", "estimate", "radius", "methods", "certify"} | ON_TOP,
    "models": {"data", "kernels", "propagate", "estimate", "radius", "methods", "certify"} | ON_TOP,
    "kernels": {"data", "models", "propagate", "estimate", "radius", "methods", "certify"} | ON_TOP,
    "propagate": {"data", "estimate", "radius", "methods", "certify"} | ON_TOP,
    "estimate": {"data", "models", "methods", "certify"} | ON_TOP,
    "methods": {"data", "models", "certify"} | ON_TOP,
    "certify": {"data", "models", "propagate", "estimate", "radius", "methods"} | ON_TOP,
    "train": {"certify", "report", "cli", "bench", "explore", "inspect"},
    "noisy": {"certify", "cli", "bench", "explore", "inspect"},
}
"""Rules know layers but not training, methods propagation but not data, certify any callable."""

FOR_REPORT = {"__version__", "errors", "files", "report"}
"""A report reads files only."""


def imported(room: str) -> Iterator[tuple[str, str]]:
    """(file, part of covprop) for every import in a part, those inside functions too."""
    for file in sorted((PACKAGE / room).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.ImportFrom):
                assert not node.level, f"{file} has a relative import, which this test cannot read"
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                if name.startswith("covprop."):
                    yield file.relative_to(PACKAGE).as_posix(), name.split(".")[1]


@pytest.mark.parametrize("room", UNKNOWN_TO)
def test_no_part_knows_more_than_it_should(room: str) -> None:
    found = set(imported(room))
    assert {part for _, part in found} & {room, "errors", "layers"}, "nothing was read"
    assert [(file, part) for file, part in sorted(found) if part in UNKNOWN_TO[room]] == []


def test_a_report_reads_files_only() -> None:
    found = set(imported("report"))
    assert {part for _, part in found} >= {"errors", "files"}, "nothing was read"
    assert [(file, part) for file, part in sorted(found) if part not in FOR_REPORT] == []
