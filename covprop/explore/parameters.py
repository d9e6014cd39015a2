"""The parameters of a request: every one known, given once, a number in its range."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from covprop.errors import InvalidInput

MOST = 2**53 - 1  # what a number in a script can count to


@dataclass(frozen=True)
class Whole:
    """A whole number from low to high."""

    low: int = 0
    high: int = MOST
    optional: bool = False

    def read(self, name: str, given: Any) -> int:
        text = given if isinstance(given, str) else json.dumps(given)
        # `int` would also take " 1_0", "+1" and digits of other scripts.
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 16):
            raise InvalidInput(f"{name} is a whole number, not {text[:40]!r}.")
        value = int(text)
        if not self.low <= value <= self.high:
            raise InvalidInput(f"{name} lies between {self.low} and {self.high}, not at {value}.")
        return value


@dataclass(frozen=True)
class Real:
    """A number above 0, up to high."""

    high: float
    optional: bool = False

    def read(self, name: str, given: Any) -> float:
        text = given if isinstance(given, str) else json.dumps(given)
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 < value <= self.high:
            raise InvalidInput(f"{name} is a number above 0, up to {self.high:g}, not {text[:40]}.")
        return value


Kinds = Mapping[str, Whole | Real]


def from_query(query: str, kinds: Kinds) -> dict[str, Any]:
    """The parameters in an address.

    Example:
        >>> from_query("index=3", {"index": Whole(), "layer": Whole(optional=True)})
        {'index': 3, 'layer': None}
    """
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise InvalidInput("the address is not of the form name=value&name=value.") from None
    for i, (name, _) in enumerate(pairs):
        if any(name == other for other, _ in pairs[:i]):
            raise InvalidInput(f"{name[:40]} is given twice.")
    return _read(dict(pairs), kinds)


def from_body(body: bytes, kinds: Kinds) -> dict[str, Any]:
    """The parameters in a JSON object."""
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise InvalidInput("the body of the request is no JSON object.")
    return _read(given, kinds)


def _read(given: Mapping[str, Any], kinds: Kinds) -> dict[str, Any]:
    for name in given:
        if name not in kinds:
            raise InvalidInput(f"there is no parameter {name[:40]!r}; known: {', '.join(kinds)}.")
    found: dict[str, Any] = {}
    for name, kind in kinds.items():
        if name in given:
            found[name] = kind.read(name, given[name])
        elif kind.optional:
            found[name] = None
        else:
            raise InvalidInput(f"the parameter {name} is missing.")
    return found
