"""Check options against the signature of the function or class that takes them.

The options of models, methods and weightings are their parameters, so there is no second list to
maintain. Ranges are part of the types, as in `Annotated[int, Range(1)]`.
"""

from __future__ import annotations

import inspect
import math
import types
import typing
from collections.abc import Callable, Collection, Mapping
from numbers import Integral
from typing import Annotated, Any, Literal, NamedTuple, TypeGuard, TypeVar

from covprop.errors import InvalidInput
from covprop.names import nearest

Thing = TypeVar("Thing")


LARGEST = 3.4e38
"""The largest float32: networks compute in it, and a larger number would fail or be infinite."""


class Range(NamedTuple):
    """low ≤ value ≤ high, or low < value with `strict`."""

    low: float = -math.inf
    high: float = math.inf
    strict: bool = False

    def admits(self, value: float) -> bool:
        above = value > self.low if self.strict else value >= self.low
        return above and value <= self.high and abs(value) <= LARGEST

    def __str__(self) -> str:
        low = f"{'above' if self.strict else 'at least'} {self.low:g}"
        high = f"at most {self.high:g}"
        parts = [low] * (self.low > -math.inf) + [high] * (self.high < math.inf)
        return " and ".join(parts) or "finite"


Positive = Annotated[float, Range(0, strict=True)]
NotNegative = Annotated[float, Range(0)]
Fraction = Annotated[float, Range(0, 1)]


def is_whole(value: object) -> TypeGuard[int]:
    """Whether a value is a whole number, of Python or numpy; True and False are none.

    Example:
        >>> [is_whole(value) for value in (3, 3.0, True, "3")]
        [True, False, False, False]
    """
    return isinstance(value, Integral) and not isinstance(value, bool)


def accepted(
    target: Callable[..., Any], skip: Collection[str] = ()
) -> dict[str, inspect.Parameter]:
    """The keyword parameters of a function or class, with evaluated annotations."""
    try:
        signature = inspect.signature(target, eval_str=True)
    except (NameError, AttributeError, TypeError):  # an own file may annotate with anything
        signature = inspect.signature(target)
    return {
        name: parameter
        for name, parameter in signature.parameters.items()
        if name not in skip and parameter.kind is not parameter.VAR_POSITIONAL
    }


def check_options(
    section: str, given: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]
) -> dict[str, Any]:
    """Every value checked against its parameter, with the defaults filled in.

    Defaults that a recipe cannot express (None, objects) are left out: absent means default.

    Example:
        >>> def noise(sigma: float, copies: int = 2): ...
        >>> check_options("noise", {"sigma": 1}, accepted(noise))
        {'sigma': 1.0, 'copies': 2}
    """
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = {n: p for n, p in parameters.items() if p.kind is not p.VAR_KEYWORD}
    for key in given:
        if key not in named and not takes_any:
            raise InvalidInput(
                f"there is no option {section}.{key}{nearest(key, named)}; "
                f"{section} takes {', '.join(named) or 'none'}."
            )
    values: dict[str, Any] = {}
    for name, parameter in named.items():
        if name in given:
            values[name] = check_value(f"{section}.{name}", given[name], _type_of(parameter))
        elif parameter.default is parameter.empty:
            raise InvalidInput(f"{section}.{name} has no value; give it one.")
        elif _expressible(parameter.default):
            values[name] = parameter.default
    return values | {key: value for key, value in given.items() if key not in named}


def call(
    section: str,
    target: Callable[..., Thing],
    facts: Mapping[str, Any],
    given: Mapping[str, Any],
) -> Thing:
    """Call `target` with the facts that it has parameters for, and with all options given.

    Example:
        >>> call("net", lambda classes, width=8: (classes, width), {"classes": 3, "size": 9}, {})
        (3, 8)
    """
    parameters = accepted(target)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    known = {name: fact for name, fact in facts.items() if name in parameters or takes_any}
    own = {name: p for name, p in parameters.items() if name not in facts}
    return target(**known, **check_options(section, given, own))


def check_fields(section: str, thing: Any) -> None:
    """Check every field of a dataclass against its type; 1 for a float becomes 1.0.

    Example:
        >>> from dataclasses import make_dataclass
        >>> thing = make_dataclass("Copies", [("samples", Annotated[int, Range(1)])])(samples=0)
        >>> check_fields("method", thing)
        Traceback (most recent call last):
        ...
        covprop.errors.InvalidInput: method.samples must be at least 1, not 0.
    """
    for name, parameter in accepted(type(thing)).items():
        value = check_value(f"{section}.{name}", getattr(thing, name), _type_of(parameter))
        object.__setattr__(thing, name, value)


def check_value(where: str, value: Any, annotation: Any) -> Any:
    """`value` as the annotated type, or InvalidInput naming the key."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        value = check_value(where, value, args[0])
        for bounds in args[1:]:
            if isinstance(bounds, Range) and not bounds.admits(value):
                needed = f"at most {LARGEST:g}" if value > LARGEST else bounds
                raise InvalidInput(f"{where} must be {needed}, not {value!r}.")
        return value
    if origin is Literal:
        if not any(type(value) is type(a) and value == a for a in args):  # 1 == True
            options = ", ".join(str(a).lower() if a in (True, False) else repr(a) for a in args)
            words = [a for a in args if isinstance(a, str)]
            hint = nearest(value, words) if isinstance(value, str) else ""
            raise InvalidInput(f"{where} must be one of {options}, not {value!r}{hint}.")
        return value
    if origin in (typing.Union, types.UnionType):
        return _check_union(where, value, args)
    if origin in (tuple, list) or getattr(origin, "__name__", "") in ("Sequence", "Iterable"):
        found = _check_sequence(where, value, args)
        return list(found) if origin is list else found
    plain = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
    if annotation not in plain:
        return value
    if annotation is float and isinstance(value, int | float) and type(value) is not bool:
        value = float(value)
    if type(value) is not annotation:
        raise InvalidInput(f"{where} must be {plain[annotation]}, not {value!r}.")
    if annotation is float and math.isnan(value):
        raise InvalidInput(f"{where} must be a number, not nan.")
    return value


def _type_of(parameter: inspect.Parameter) -> Any:
    """The annotated type, or else the type of the default: a user's own file may have no
    annotations."""
    if parameter.annotation is not parameter.empty:
        return Any if isinstance(parameter.annotation, str) else parameter.annotation
    return Any if parameter.default is None else type(parameter.default)


def _check_union(where: str, value: Any, members: tuple[Any, ...]) -> Any:
    if value is None and type(None) in members:
        return None
    errors = []
    for member in members:
        if member is type(None):
            continue
        try:
            return check_value(where, value, member)
        except InvalidInput as error:
            errors.append(error)
    raise errors[0] if errors else InvalidInput(f"{where} cannot be set, not even to {value!r}.")


def _check_sequence(where: str, value: Any, members: tuple[Any, ...]) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise InvalidInput(f"{where} must be a list such as [1, 2], not {value!r}.")
    if (len(members) == 2 and members[1] is Ellipsis) or len(members) < 2:
        members = (members[0] if members else Any,) * len(value)
    if len(members) != len(value):
        raise InvalidInput(f"{where} must be a list of {len(members)} values, not {list(value)}.")
    return tuple(check_value(where, v, m) for v, m in zip(value, members, strict=True))


def _expressible(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_expressible(v) for v in value)
    return isinstance(value, bool | int | float | str)
