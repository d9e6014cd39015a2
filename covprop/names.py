"""Helping with mistyped names."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """` (did you mean "…"?)` when a known name is close to `name`, otherwise an empty string.

    Example:
        >>> nearest("lenett", ["lenet", "cnn9"])
        ' (did you mean "lenet"?)'
    """
    found = difflib.get_close_matches(name, list(known), n=1)
    return f' (did you mean "{found[0]}"?)' if found else ""
