"""Finds certification logs: those given by name, and those in folders, to their depth."""

import re
from collections.abc import Sequence
from pathlib import Path

from covprop.errors import InvalidInput
from covprop.report.sidecars import read_config
from covprop.report.tsv import has_header

_OLD = re.compile(r".+\.old-\d+(\.tsv)?")


def logs_under(path: Path) -> tuple[list[Path], list[str]]:
    """The logs a path stands for, and warnings on what was found and has none.

    What `covprop train --restart` set aside in a folder (RUN.old-1) is no part of it.
    """
    if path.is_file():
        return [path], []
    if not path.is_dir():
        raise InvalidInput(f"{path} does not exist; give a run folder or a certification log.")
    found = sorted(
        (p for p in path.rglob("*.tsv") if p.is_file() and _is_log(p)),
        key=_natural,
    )
    logs = [log for log in found if not set_aside(log.relative_to(path))]
    configs = sorted(p for p in path.rglob("config.toml") if not set_aside(p.relative_to(path)))
    if found and not logs and not configs:
        raise InvalidInput(
            f"{path} holds no certification log but what was set aside; give {found[0]} by name."
        )
    if not logs:
        run = configs[0].parent if configs else path
        raise InvalidInput(
            f"{path} holds no certification log; make one with `covprop certify {run}`."
        )
    certified = {log.parent for log in logs}
    warnings = _not_certified([config for config in configs if config.parent not in certified])
    # One run that has only just begun must not stand in the way of a report on the others.
    started = [log for log in logs if _has_rows(log)]
    if started:
        empty = [log for log in logs if log not in started]
        warnings += [f"{log} holds no row yet and was left out." for log in empty]
    return started or logs, warnings


def named_itself(path: Path, log: Path) -> bool:
    """Whether a log was given by its name or its run's folder, not found among others."""
    return path == log or (path == log.parent and log.name.startswith("certify_"))


def set_aside(path: Path) -> bool:
    """Whether a run or a log was renamed to make room for another.

    >>> set_aside(Path("digits/a.old-1/certify_sigma_0.25.tsv")), set_aside(Path("old-1/a.tsv"))
    (True, False)
    """
    return any(map(_OLD.fullmatch, path.parts))


def left_out(log: Path, error: InvalidInput) -> str:
    """The warning for a damaged log among others."""
    return f"{log} was left out: {str(error).removeprefix(f'{log}, ')}"


def _not_certified(configs: Sequence[Path]) -> list[str]:
    """What there is to say about runs without a log."""
    open_runs, damaged = [], []
    for config in configs:
        try:
            # Runs with [labels] are judged by their accuracy and not certified.
            if "labels" not in read_config(config)[1]:
                open_runs.append(config.parent)
        except InvalidInput as error:
            damaged.append(left_out(config.parent, error))
    if not open_runs:
        return damaged
    first, more = open_runs[0], len(open_runs) - 1
    which = f"{first} is" if not more else f"{first} and {more} more are"
    return [
        f"{which} not certified yet and left out; run `covprop certify {first}`.",
        *damaged,
    ]


def _is_log(path: Path) -> bool:
    return path.name.startswith("certify_") or has_header(path)


def _has_rows(log: Path) -> bool:
    """Whether a log has a line below its header; one that cannot be read is told of as it is."""
    try:
        return log.read_bytes().strip().count(b"\n") > 0
    except OSError:
        return True


def _natural(path: Path) -> list[tuple[float, str]]:
    """Sorts run-2 before run-10, and σ = 0.25 before 0.5."""
    parts = re.split(r"(\d+(?:\.\d+)?)", str(path))
    # Text and numbers take turns, so a number is only ever compared with a number.
    return [(float(part), "") if i % 2 else (0.0, part) for i, part in enumerate(parts)]
