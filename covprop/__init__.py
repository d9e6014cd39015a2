"""covprop: closed-form moments of Gaussian noise through any PyTorch classifier.

Estimated radius (closed form, from moments) and certified radius (Monte Carlo with a confidence
bound) are two different things here, and no name in this package mixes them up.

The public names are those of `covprop.api`. They and the modules of the package are imported when
they are first asked for: torch takes seconds, for which help and reports need not wait.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from covprop.api import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        if name != "__all__" and name.startswith("_"):
            raise AttributeError(f"module 'covprop' has no attribute '{name}'")
        if name != "certify" and find_spec(f"covprop.{name}"):
            return import_module(f"covprop.{name}")
        value = globals()[name] = getattr(import_module("covprop.api"), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *import_module("covprop.api").__all__})


class _Package(ModuleType):
    """`covprop.certify` is a function, although the package that holds it has the same name and
    its import would put it here instead."""

    def __setattr__(self, name: str, value: object) -> None:
        if name != "certify" or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
