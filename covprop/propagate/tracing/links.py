"""Check that a model still holds the layers its plan was made from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from torch import nn

from covprop.errors import InvalidInput


class Link(NamedTuple):
    """A place in a model, and the module found there when it was traced (None: there was none)."""

    parent: nn.Module
    key: str
    child: nn.Module | None
    path: str


def bare(module: nn.Module | None) -> nn.Module | None:
    """The module itself, without torch.compile's wrapper."""
    return getattr(module, "_orig_mod", module)


def links_of(model: nn.Module, used: Iterable[nn.Module]) -> tuple[Link, ...]:
    """The places of all modules that a trace used, and of the modules that contain them."""
    used = set(used)
    places = dict(model.named_modules(remove_duplicate=False))
    found = []
    for path, module in places.items():
        parent, _, key = path.rpartition(".")
        if path and key != "_orig_mod" and not used.isdisjoint(module.modules()):
            found.append(Link(places[parent], key, bare(module), path))
        if isinstance(module, nn.Sequential) and module in used | {model}:
            end = str(len(module))  # where append would add a layer
            found.append(Link(module, end, None, f"{path}.{end}".lstrip(".")))
    return tuple(found)


def check_links(model: nn.Module, root: nn.Module, links: tuple[Link, ...]) -> None:
    """Refuse a model whose layers were replaced since the trace: the old ones would be used.

    It compares identities only, since it runs in every pass, compiled ones too.
    """
    if model is not root and bare(model) is not root:
        raise InvalidInput("the model was replaced since the propagator was built: build another.")
    for parent, key, child, path in links:
        found = parent._modules.get(key)
        if found is not child and bare(found) is not child:
            raise InvalidInput(
                f"the layer {path} was {'added' if child is None else 'replaced'} since the "
                "propagator was built: build another."
            )
