"""The values of a trace: to forward they are tensors, with sizes that are numbers where known."""

from __future__ import annotations

import builtins
import functools
import operator
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn

if TYPE_CHECKING:
    from covprop.propagate.tracing.tracer import Tracer

BATCHES = (2, 3)
SEEN = "covprop"
"""Where a node keeps its values for BATCHES; it has none where they could not be computed."""


IN_PLACE: dict[Any, Any] = {
    getattr(operator, f"i{name.strip('_')}"): getattr(operator, name)
    for name in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"),
        *("and_", "or_", "xor", "lshift", "rshift"),
    )
}
"""What `+=` and its like do to a tensor, and the operation that leaves it as it is."""


class Sizes(tuple):
    """Sizes of a tensor, plain numbers but for those that depend on the batch."""

    def numel(self) -> Any:
        """Their product, as of torch.Size."""
        return functools.reduce(operator.mul, self, 1)

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        return Sizes(found) if isinstance(key, slice) else found


class Value(fx.Proxy):
    """A value of the trace; its sizes are numbers where they are known, and what buffers are."""

    tracer: Tracer

    def is_weight(self) -> bool:
        return self.node.op == "get_attr" and self.node.target in self.tracer.weights

    def __getattr__(self, name: str) -> Any:
        kept = self.node.meta.get(SEEN)
        if self.node.op == "get_attr" and name in (own := vars(self.tracer.attribute(self.node))):
            return own[name]  # what the model's author wrote on a weight or a buffer
        if kept and not hasattr(type(kept[0]), name):
            raise AttributeError(f"{type(kept[0]).__name__!r} object has no attribute {name!r}")
        return super().__getattr__(name)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """As of any Proxy, which looks for values of the trace in plain tuples only."""
        plain = lambda arg: tuple(arg) if isinstance(arg, Sizes) else arg  # noqa: E731
        given = {name: plain(value) for name, value in (kwargs or {}).items()}
        return super().__torch_function__(function, types, tuple(map(plain, args)), given)

    def _seen(self) -> Tensor | None:
        """What the value is for the first of BATCHES, if it is a tensor of known dimensions."""
        pair = self.node.meta.get(SEEN, (None, None))
        tensors = all(isinstance(value, Tensor) for value in pair)
        return pair[0] if tensors and pair[0].ndim == pair[1].ndim else None

    def size(self, dim: Any = None) -> Any:
        seen = self._seen()
        if seen is None or not (dim is None or isinstance(dim, int)):
            return super().__getattr__("size")(*(() if dim is None else (dim,)))
        if dim is None:
            return Sizes(self.size(i) for i in range(seen.ndim))
        one, other = (value.size(dim) for value in self.node.meta[SEEN])
        return one if one == other else super().__getattr__("size")(dim)

    @property
    def shape(self) -> Any:
        return super().__getattr__("shape") if self._seen() is None else self.size()

    def dim(self) -> Any:
        seen = self._seen()
        return super().__getattr__("dim")() if seen is None else seen.ndim

    ndimension = dim

    @property
    def ndim(self) -> Any:
        return super().__getattr__("ndim") if self._seen() is None else self.dim()

    def is_floating_point(self) -> Any:
        seen = self._seen()
        return (
            super().__getattr__("is_floating_point") if seen is None else seen.is_floating_point
        )()

    def __len__(self) -> int:
        rows = self.size(0) if self._seen() is not None and self.dim() else None
        return rows if isinstance(rows, int) else super().__len__()

    def __int__(self) -> int:
        return int(self.tracer.number(self.node))

    def __float__(self) -> float:
        return float(self.tracer.number(self.node))

    def item(self) -> Any:
        return self.tracer.number(self.node).item()

    def tolist(self) -> Any:
        return self.tracer.number(self.node).tolist()


@contextmanager
def as_tensors() -> Iterator[None]:
    """Within it, isinstance takes values of the trace for the tensors that forward sees in them,
    and their sizes for a torch.Size.

    A `__class__` that says so would serve Python, but torch's C code asks it too, and crashes; nor
    may torch's own Python code be told so, but for `torch.is_tensor`.
    """
    plain = builtins.isinstance

    def asked(value: Any, kinds: Any) -> bool:
        if plain(value, kinds):
            return True
        if type(value) is Sizes:
            seen_as: type = torch.Size
        elif type(value) is Value and value._seen() is not None:
            seen_as = nn.Parameter if value.is_weight() else Tensor
        else:
            return False
        caller = sys._getframe(1)
        module = str(caller.f_globals.get("__name__"))
        if module.partition(".")[0] == "torch" and caller.f_code.co_name != "is_tensor":
            return False
        return issubclass(seen_as, kinds)

    builtins.isinstance = asked
    try:
        yield
    finally:
        builtins.isinstance = plain


def _in_place(change: Any) -> Any:
    """`value += other` for a tensor: a step that changes it under all of its names."""

    def method(self: Value, other: Any) -> Any:
        seen = self.node.meta.get(SEEN)
        number = seen is not None and not isinstance(seen[0], Tensor)  # sizes
        target = IN_PLACE[change] if number else change
        made = self.tracer.create_proxy("call_function", target, (self, other), {})
        vars(made).update({**vars(self), **vars(made)})  # it is the same to its author
        return made

    return method


for _change in IN_PLACE:
    setattr(Value, f"__{_change.__name__}__", _in_place(_change))
