"""Helping with mistyped names."""

import difflib
from collections.abc import Iterable

from covprop.errors import InvalidInput


def nearest(name: str, known: Iterable[str]) -> str:
    """` (did you mean "…"?)` when a known name is close to `name`, otherwise an empty string.

    Example:
        >>> nearest("lenett", ["lenet", "cnn9"])
        ' (did you mean "lenet"?)'
    """
    found = difflib.get_close_matches(name, list(known), n=1)
    return f' (did you mean "{found[0]}"?)' if found else ""


def unknown(what: str, name: str, known: Iterable[str], hint: str = "") -> InvalidInput:
    """The error for a name that is none of the known ones; `hint` is put before their list.

    Example:
        >>> str(unknown("model", "lenett", ["lenet", "cnn9"]))
        'there is no model "lenett" (did you mean "lenet"?); choose one of lenet, cnn9.'
    """
    said = hint or nearest(name, known)
    return InvalidInput(f'there is no {what} "{name}"{said}; choose one of {", ".join(known)}.')
