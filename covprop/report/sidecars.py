"""The plain files that may lie beside a certification log: recipe, metrics, estimates, details."""

import json
import math
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from covprop.errors import InvalidInput
from covprop.report.tsv import Rows, read_text

Floats = NDArray[np.float64]

ESTIMATED_HEADER = ["idx", "estimator", "radius"]


class Journal(NamedTuple):
    """What a log's journal knows beyond the log, in the order of its rows."""

    radius: Floats  # certified, unrounded
    p_lower: Floats  # lower bound of p_A
    samples: Floats
    nan: Floats  # samples on which the model returned NaN


def read_config(path: Path) -> tuple[str, dict[str, Any]]:
    """The resolved recipe of a run, as text and parsed; empty where there is none."""
    if not path.is_file():
        return "", {}
    text = read_text(path)
    try:
        return text, tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"{path} is not valid TOML ({error}); restore or remove it.") from None


def section(config: dict[str, Any], name: str) -> dict[str, Any]:
    """A section of a recipe; a plain value for a section is its name."""
    found = config.get(name, {})
    return found if isinstance(found, dict) else {"name": found}


def read_json(path: Path) -> dict[str, Any]:
    """How a log was certified (σ, N0, N, α …); empty where there is none."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(read_text(path), parse_int=_whole)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{path} is not valid JSON ({error}); restore or remove it.") from None
    if not isinstance(value, dict):
        raise InvalidInput(f"{path} must hold a JSON object; restore or remove it.")
    return value


def _whole(digits: str) -> int:
    """A whole number that a float can hold."""
    if len(digits) > 300:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def most_certified(meta: dict[str, Any]) -> float:
    """The radius that n samples certify if all agree; ∞ where it is not known how many, and how.

    A sequential certificate spends part of α before the last sample: its end is not larger.

    >>> round(most_certified({"sigma": 0.25, "n": 100_000, "alpha": 0.001, "mode": "hard"}), 3)
    0.953
    """
    known = [meta.get(key) for key in ("sigma", "n", "alpha")]
    sigma, n, alpha = (float(v) if isinstance(v, int | float) else math.nan for v in known)
    mode = str(meta.get("mode", "")).partition(",")[0]
    if not (sigma > 0 and n >= 1 and 0 < alpha < 1):
        return math.inf
    if mode == "hard":  # Clopper-Pearson: p_A ≥ α^(1/n)
        beyond = -math.expm1(math.log(alpha) / n)
    elif mode == "soft":  # empirical Bernstein without variance; one sample bounds nothing
        beyond = min(7 * math.log(2 / alpha) / (3 * max(n - 1, 1)), 1.0)
    else:
        return math.inf
    return max(-sigma * float(ndtri(beyond)), 0.0)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file; a last line cut while being written is passed over."""
    if not path.is_file():
        return []
    lines = read_text(path).splitlines()
    entries = []
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line, parse_int=_whole)
        except (ValueError, RecursionError):  # a number of too many digits is a plain ValueError
            if number == len(lines):
                break
            raise InvalidInput(f"{path}, line {number} is not valid JSON; remove it.") from None
        if isinstance(entry, dict):
            entries.append(entry)
    return entries


def read_metrics(path: Path) -> tuple[float | None, int | None]:
    """Training seconds and epochs of a run; each epoch's row holds the seconds up to its end."""
    finished = [entry for entry in read_jsonl(path) if isinstance(entry.get("epoch"), int)]
    if not finished:
        return None, None
    seconds = finished[-1].get("seconds")
    return float(seconds) if isinstance(seconds, int | float) else None, finished[-1]["epoch"]


def read_journal(path: Path, rows: Rows) -> tuple[Journal | None, list[str]]:
    """The full-precision rows beside a log, in its order; None where one is missing.

    A journal that contradicts the log belongs to another certification and is not used.
    """
    found = read_jsonl(path)
    by_idx = {entry["idx"]: entry for entry in found if isinstance(entry.get("idx"), int)}
    try:
        entries = [by_idx[int(idx)] for idx in rows.idx]
        journal = Journal(
            *(
                np.array([float(entry[name]) for entry in entries])
                for name in ("radius", "p_lower", "n", "nan")
            )
        )
        predict = np.array([int(entry["predict"]) for entry in entries])
    except (KeyError, TypeError, ValueError, OverflowError):
        return None, []
    # The log keeps three significant digits of the radius.
    same = np.isclose(journal.radius, rows.radius, rtol=0.01, atol=0) & (predict == rows.predict)
    if not same.all():
        return None, [f"{path} contradicts its log and was not used; one of them is not its own."]
    return journal, []


def read_estimates(path: Path, rows: Rows) -> tuple[dict[str, Floats], list[str]]:
    """Estimated radii from `estimated.tsv` by estimator, in the order of the rows; NaN = none."""
    if not path.is_file():
        return {}, []
    text = read_text(path)
    lines = text.splitlines()
    if not lines or lines[0].split("\t") != ESTIMATED_HEADER:
        raise InvalidInput(f"{path} must open with the tab-separated names idx estimator radius.")
    position = {int(idx): i for i, idx in enumerate(rows.idx)}
    estimates: dict[str, Floats] = {}
    warnings = []
    for number, line in enumerate(lines[1:], start=2):
        try:
            idx, estimator, radius = line.split("\t")
            row, value = position.get(int(idx)), float(radius)
        except ValueError:
            if number == len(lines) and not text.endswith("\n"):
                warnings.append(f"{path}: the last line ({number}) is cut off and was left out.")
                break
            raise InvalidInput(
                f"{path}, line {number}: idx, estimator and radius expected, separated by tabs."
            ) from None
        if row is not None:
            estimates.setdefault(estimator, np.full(len(rows), np.nan))[row] = value
    return estimates, warnings
