"""Building a model from a function, shipped or from the user's own file."""

import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from covprop.errors import InvalidInput
from covprop.names import nearest


def load_function(name: str) -> Callable[..., nn.Module]:
    """The function `"path/to/file.py:function"` names; the file is run once per call."""
    file, _, function = name.rpartition(":")
    path = Path(file).expanduser().resolve()
    if not path.is_file():
        raise InvalidInput(f'Model "{name}": there is no file {path}.')
    # Two files of the same name in different folders must not shadow each other.
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    spec = importlib.util.spec_from_file_location(f"{path.stem}_{digest}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look their module up here
    sys.path.insert(0, str(path.parent))  # the file may import its neighbours
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[spec.name]
        raise InvalidInput(f'Model "{name}": {path} failed{_where(error, path)}.') from error
    finally:
        sys.path.remove(str(path.parent))
    found = getattr(module, function, None)
    if not callable(found):
        raise InvalidInput(f'Model "{name}": {path} defines no function "{function}".')
    return found


def call_builder(
    name: str,
    builder: Callable[..., nn.Module],
    facts: dict[str, Any],
    options: dict[str, Any],
) -> nn.Module:
    """Call `builder` with the facts it has parameters for and with every option.

    An option it has no parameter for, or a required one that is missing, is the user's mistake.
    """
    parameters = inspect.signature(builder).parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    own = [n for n, p in parameters.items() if n not in facts and p.kind is not p.VAR_KEYWORD]
    for option, value in options.items():
        if option in own:
            _check_type(name, option, value, parameters[option].default)
        elif not takes_all:
            has = f"it has {', '.join(own)}" if own else "it has none"
            raise InvalidInput(
                f'Model "{name}" has no option "{option}"{nearest(option, own)}; {has}.'
            )
    arguments = {k: v for k, v in facts.items() if k in parameters or takes_all} | options
    for n, p in parameters.items():
        needed = p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        if needed and n not in arguments:
            raise InvalidInput(f'Model "{name}" needs a value for its option "{n}".')
    net = builder(**arguments)
    if not isinstance(net, nn.Module):
        raise InvalidInput(
            f'Model "{name}" returned a {type(net).__name__}, but must return an nn.Module.'
        )
    return net


def _check_type(name: str, option: str, value: Any, default: Any) -> None:
    """Options come from a recipe: a string where the default is a number is a slip there."""
    expected = type(default)
    if expected not in (bool, int, float, str) or type(value) is expected:
        return
    if expected is float and type(value) is int:
        return
    raise InvalidInput(
        f'Model "{name}" needs {option} of type {expected.__name__}, '
        f"such as {default!r}, not {value!r}."
    )


def _where(error: Exception, path: Path) -> str:
    """` at line N with NameError: …`, the line being the last one inside the user's file."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    if isinstance(error, SyntaxError):
        lines = [error.lineno]
    at = f" at line {lines[-1]}" if lines and lines[-1] else ""
    return f"{at} with {type(error).__name__}: {error}"
