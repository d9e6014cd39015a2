"""Recipes as TOML: single values read, whole sections written."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from datetime import date, time
from typing import Any

BARE = re.compile(r"[A-Za-z0-9_-]+")
"""Keys that need no quotes."""


def value(text: str) -> Any:
    """`text` as TOML, or as the plain string it is: adamw, my_net.py:build."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if set(parsed) == {"value"} else text


def dumps(config: Mapping[str, Mapping[str, Any]]) -> str:
    """Flat sections of plain values as TOML.

    Example:
        >>> print(dumps({"noise": {"sigma": 0.25}}))
        [noise]
        sigma = 0.25
        <BLANKLINE>
    """
    sections = []
    for section, values in config.items():
        lines = [f"{_key(key)} = {_toml(value)}" for key, value in values.items()]
        sections.append("\n".join([f"[{section}]", *lines]) + "\n")
    return "\n".join(sections)


def _key(name: str) -> str:
    return name if BARE.fullmatch(name) else _toml(name)


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_key(key)} = {_toml(v)}' for key, v in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml(v) for v in value)}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, date | time):
        return value.isoformat()
    # JSON's string escapes are TOML's but for one; numbers print the same in Python and TOML.
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
    return text.replace("\x7f", "\\u007f")
