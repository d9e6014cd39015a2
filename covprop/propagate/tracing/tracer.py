"""Trace a forward with torch.fx, at sizes that are known.

Beside its node, every value of the trace has what it would be for a batch of two images and for one
of three, on meta tensors. Sizes that are the same for both are plain numbers to forward, so that it
may compute and branch with them; the size of the batch stays symbolic.
"""

from __future__ import annotations

import functools
import operator
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from covprop.errors import UnsupportedModel
from covprop.mode import called_with, tensors_of
from covprop.propagate.registry import has_rule
from covprop.propagate.tracing.hooks import has_hooks
from covprop.propagate.tracing.value import BATCHES, IN_PLACE, SEEN, Value


class Tracer(fx.Tracer):
    """Traces into the user's blocks; a module that has a rule is one step.

    `defaults` are the values of forward's arguments after the image. They are filled in here,
    since fx's own concrete_args would flatten tuples, lists and dicts, and forward's result too.
    Buffers are read in the trace, as parameters are: what forward computes of them, and writes
    into them, would else be done once, with the model's own.
    """

    proxy_buffer_attributes = True

    def __init__(self, defaults: dict[str, Any], image: Tensor) -> None:
        super().__init__()
        self.record_stack_traces = True
        self.defaults = defaults
        self.images = tuple(image.new_empty(batch, *image.shape) for batch in BATCHES)
        self.called: list[nn.Module] = []
        self.aside = False  # fx sees all modules that are called, also those run on meta tensors

    def create_args_for_root(self, root_fn: Any, is_module: bool, *_: Any, **__: Any) -> Any:
        function, arguments = super().create_args_for_root(root_fn, is_module)
        arguments[1].node.meta[SEEN] = self.images
        self.given = {*self.root.modules()}
        self.weights = dict(self.root.named_parameters(remove_duplicate=False)).keys()
        rest = [self.defaults.get(proxy.node.target, proxy) for proxy in arguments[2:]]

        def returning(*values: Any) -> Any:
            if not isinstance(made := function(*values), fx.Proxy):
                raise no_logits(self.root, f", not a {type(made).__name__}")
            return made

        return returning, [*arguments[:2], *rest]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return has_rule(m) or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, *call: Any) -> Any:
        if self.aside:
            forward, args, kwargs = call
            return forward(*args, **kwargs)
        if isinstance(inner := getattr(m, "_orig_mod", None), nn.Module):  # of torch.compile
            m, call = inner, (inner.forward, *call[1:])
        if m not in self.given and m in {*self.root.modules()}:
            raise UnsupportedModel(
                f"{type(self.root).__name__}.forward makes a layer of its own "
                f"({type(m).__name__}): make it in __init__, or, if forward makes it once, run the "
                "model on a batch of images before."
            )
        if m not in self.given and type(m) is nn.Sequential:  # a slice, as self.features[:2]
            forward, args, kwargs = call
            return forward(*args, **kwargs)
        self.called.append(m)
        return super().call_module(m, *call)

    def getattr(self, attr: str, attr_val: Any, *cache: Any) -> Any:
        return attr_val if self.aside else super().getattr(attr, attr_val, *cache)

    def create_arg(self, a: Any) -> Any:
        return super().create_arg(a.item() if isinstance(a, np.number) else a)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return Value(node, self)

    def create_node(self, *given: Any, **options: Any) -> fx.Node:
        node = super().create_node(*given, **options)
        try:
            with self._looking(), torch.random.fork_rng([]):  # what it draws is drawn in every pass
                node.meta[SEEN] = tuple(self._value(node, which) for which in range(len(BATCHES)))
        except Exception:
            node.meta.pop(SEEN, None)
        return node

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """Within it, what is read and called is not traced."""
        before, self.aside = self.aside, True
        try:
            yield
        finally:
            self.aside = before

    def _value(self, node: fx.Node, which: int) -> Any:
        """What a node is for one of the batches; any error says that this is not known."""
        if node.op == "get_attr":
            value = self.attribute(node)
            return value.detach().to("meta") if isinstance(value, Tensor) else value
        refer: Any = lambda arg: arg.meta[SEEN][which]  # noqa: E731  (map_arg's type is narrower)
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), refer)
        if node.op == "call_module":
            layer = self.root.get_submodule(str(node.target))
            if has_hooks(layer):  # not to be called more often than needed
                raise LookupError
            on_meta = {value: value.detach().to("meta") for value in tensors_of(layer).values()}
            value = called_with(layer, on_meta, *args, **kwargs)
        else:
            value = applied(node.op, node.target, args, kwargs)
        return value.to("meta") if isinstance(value, Tensor) else value

    def to_bool(self, obj: fx.Proxy) -> bool:
        """Branches on two sizes of the batch, and on what weights and buffers alone decide."""
        node = obj.node
        if node.target in (operator.eq, operator.ne) and len(node.all_input_nodes) == 2:
            one, other = (arg.meta.get(SEEN, (None,)) for arg in node.all_input_nodes)
            if isinstance(one[0], int) and isinstance(other[0], int) and one == other:
                return node.target is operator.eq
        try:
            return bool(self._decided(node))
        except LookupError:
            if not isinstance(node.meta.get(SEEN, (obj,))[0], Tensor | fx.Proxy):
                raise TypeError("it asks for a type, a device or the size of the batch") from None
            return super().to_bool(obj)

    def iter(self, obj: Any) -> Iterator[Any]:
        rows = obj.size(0) if obj._seen() is not None else None
        return (obj[row] for row in range(rows)) if isinstance(rows, int) else super().iter(obj)

    def attribute(self, node: fx.Node) -> Any:
        """The weight, buffer or constant itself that a node reads."""
        with self._looking():
            return functools.reduce(getattr, str(node.target).split("."), self.root)

    def number(self, node: fx.Node) -> Any:
        """What forward reads as a plain number, if buffers alone decide it: weights are trained."""
        try:
            return self._decided(node, weights=False)
        except LookupError:
            raise TypeError("it takes a plain number of weights or of a value") from None

    def _decided(self, node: fx.Node, weights: bool = True) -> Any:
        """A value that buffers alone decide, or weights and buffers, else LookupError."""
        if node.op == "get_attr":
            value = self.attribute(node)
            if isinstance(value, nn.Parameter) and not weights:
                raise LookupError
            return value
        if str(node.target).endswith("_"):  # it would change a buffer
            raise LookupError
        refer: Any = lambda arg: self._decided(arg, weights)  # noqa: E731
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), refer)
        with self._looking():
            return applied(node.op, IN_PLACE.get(node.target, node.target), args, kwargs)


def applied(op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a function or a method returns; LookupError for nodes that are no such call."""
    if op == "call_method":
        return getattr(args[0], target)(*args[1:], **kwargs)
    if op == "call_function":
        return target(*args, **kwargs)
    raise LookupError


def no_logits(model: nn.Module, but: str = "") -> UnsupportedModel:
    """The error about a model that returns something else."""
    return UnsupportedModel(
        f"{type(model).__name__} must return one tensor of logits [batch, classes] computed from "
        f"its input{but}; wrap it in a module that does."
    )


@contextmanager
def nothing_drawn(model: nn.Module) -> Iterator[None]:
    """Refuse a forward that draws random numbers of its own: the trace would keep the first."""
    before = _random_state()
    yield
    if _random_state() != before:
        mode = "training" if model.training else "evaluation"
        raise UnsupportedModel(
            f"{type(model).__name__}.forward draws random numbers in {mode} that a trace would "
            "keep for all passes (random.random(), torch.rand(1)): make the block that draws them "
            "a module with its own rule (covprop.rule)"
            + (", or call model.eval()." if model.training else ".")
        )


def _random_state() -> tuple[Any, ...]:
    """Where the generators of torch, Python and numpy are."""
    numpy_state = np.random.get_state()
    return torch.get_rng_state().tolist(), random.getstate(), str(numpy_state)
