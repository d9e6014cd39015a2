"""Find hooks, and forward methods replaced on single modules: both change what a layer computes,
and a trace does not see them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from covprop.propagate.registry import describe, kind
from covprop.propagate.tracing.faults import Fault, unsupported

CHANGES = "a hook changes what goes in or comes out, which no rule knows of"
WRITE_OUT = "write into forward what the hook does, or remove it"
PATCHED = "its forward was exchanged on this one module, which no rule knows of"
SUBCLASS = "subclass it with that forward instead, or take it off by `del module.forward`"


def refuse_hooked_weights(model: nn.Module) -> None:
    """Refuse weights that a hook sets before each forward pass (weight_norm and spectral_norm of
    torch.nn.utils, pruning): covariances would use the weights of the pass before."""
    faults = []
    for name, module in model.named_modules():
        own = {key for key, _ in module.named_parameters(recurse=False)}
        for key, value in vars(module).items():
            if isinstance(value, Tensor) and {f"{key}_orig", f"{key}_g"} & own:
                why = f"its {key} is set anew by a hook before each forward pass"
                remedy = (
                    "take weight_norm or spectral_norm of torch.nn.utils.parametrizations; pruning "
                    "is made permanent by torch.nn.utils.prune.remove"
                )
                faults.append(Fault(name, describe(kind(module)), "", why, remedy))
    if faults:
        raise unsupported(type(model).__name__, faults)


class Watch:
    """The arguments and the result of a module's own forward, without its hooks."""

    def __init__(self) -> None:
        self.given: tuple[Any, ...] = ()
        self.returned: Any = None

    def changed(self, args: tuple[Any, ...], value: Any) -> bool:
        """Whether hooks replaced the arguments or the value of the call."""
        exchanged = any(a is not b for a, b in zip(args, self.given, strict=False))
        return exchanged or value is not self.returned


@contextmanager
def watched(module: nn.Module) -> Iterator[Watch]:
    """Watch a module's own forward, inside the hooks around it."""
    watch = Watch()

    def before(_: nn.Module, args: tuple[Any, ...]) -> None:
        watch.given = args

    def after(_: nn.Module, args: tuple[Any, ...], value: Any) -> None:
        watch.returned = value

    handles = [
        module.register_forward_pre_hook(before),
        module.register_forward_hook(after, prepend=True),
    ]
    try:
        yield watch
    finally:
        for handle in handles:
            handle.remove()


def root_hooks(model: nn.Module, x: Tensor, logits: Tensor) -> list[Fault]:
    """A fault if hooks of the model itself change image or logits, or if its forward is not that
    of its class: a trace sees the class's forward only."""
    if own_forward(model) != "forward":
        return [Fault("the model", type(model).__name__, "", PATCHED, SUBCLASS)]
    whole = _Bare(model, logits)
    with watched(whole) as watch:
        value = whole(x)
    if not watch.changed((x,), value):
        return []
    return [Fault("the model", type(model).__name__, "", CHANGES, WRITE_OUT)]


def own_forward(module: nn.Module) -> str:
    """The name of the method of its class that a module runs as forward; empty if it runs
    something else. A method that torch.compile wraps counts as that method."""
    forward = vars(module).get("forward")
    if forward is None:
        return "forward"
    compiled = hasattr(forward, "_torchdynamo_orig_callable")
    method = inspect.unwrap(forward) if compiled else forward
    name, function = getattr(method, "__name__", ""), getattr(method, "__func__", None)
    bound = getattr(method, "__self__", None) is module
    return name if bound and getattr(type(module), name, None) is function else ""


def patched(module: nn.Module) -> bool:
    """Whether a module's forward was replaced by something other than a method of its class."""
    return not own_forward(module)


HOOKS = (
    *("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    *("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"),
)


def has_hooks(module: nn.Module) -> bool:
    """Whether a module has forward hooks."""
    return any(getattr(module, name) for name in HOOKS)


class _Bare(nn.Module):
    """A model's hooks without its layers: it returns the given logits for any image."""

    def __init__(self, model: nn.Module, logits: Tensor) -> None:
        super().__init__()
        for name in HOOKS:
            setattr(self, name, getattr(model, name).copy())
        self.logits = logits

    def forward(self, *_: Any, **__: Any) -> Tensor:
        return self.logits
