"""A function in the user's own file."""

import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from covprop.errors import InvalidInput


def load_function(name: str) -> Callable[..., nn.Module]:
    """The function `"path/to/file.py:function"` names; the file is run once per call."""
    path, function = code_file(name), name.rpartition(":")[2]
    if not path.is_file():
        raise InvalidInput(f'Model "{name}": there is no file {path}.')
    # Files of the same name in different folders must not shadow each other.
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    spec = importlib.util.spec_from_file_location(f"{path.stem}_{digest}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look their module up here
    sys.path.insert(0, str(path.parent))  # the file may import its neighbours
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # sys.exit would end covprop without a word
        del sys.modules[spec.name]
        raise failed(name, error) from error
    finally:
        sys.path.remove(str(path.parent))
    if not hasattr(module, function):
        raise InvalidInput(f'Model "{name}": {path} defines no function "{function}".')
    found = getattr(module, function)
    if not callable(found) or isinstance(found, nn.Module):  # a network can be called as well
        raise InvalidInput(
            f'Model "{name}": {function} in {path} is of type {type(found).__name__}; name a '
            "function or class there that makes the network."
        )
    return found


def code_hash(name: str) -> str | None:
    """SHA-256 of the file that `"path/to/file.py:function"` names; None for a shipped model.

    What the file imports is not included. None also if it cannot be read: loading it raises.
    """
    if ".py:" not in name:
        return None
    try:
        return hashlib.sha256(code_file(name).read_bytes()).hexdigest()
    except OSError:
        return None


def code_file(name: str) -> Path:
    """The file that `"path/to/file.py:function"` names."""
    return Path(name.rpartition(":")[0]).expanduser().resolve()


def settle(net: nn.Module, image_shape: tuple[int, int, int]) -> None:
    """Let lazy layers (`nn.LazyLinear`) find their sizes, by one empty image."""
    if any(is_lazy(tensor) for tensor in (*net.parameters(), *net.buffers())):
        net.eval()
        with torch.no_grad():
            net(torch.zeros(1, *image_shape))
        net.train()


def failed(name: str, error: BaseException) -> InvalidInput:
    """What to raise when the user's file, or its function, raised `error`."""
    path = code_file(name)
    return InvalidInput(f'Model "{name}": {path} failed{_where(error, path)}.')


def _where(error: BaseException, path: Path) -> str:
    """` at line N with NameError: …`, the line being the last one inside the user's file."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    if isinstance(error, SyntaxError):
        lines = [error.lineno]
    at = f" at line {lines[-1]}" if lines and lines[-1] else ""
    return f"{at} with {type(error).__name__}: {error}".rstrip(": ")
