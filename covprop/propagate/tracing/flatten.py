"""From the graph of a trace to plain steps, none of which changes a value in place."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx, nn

from covprop.propagate.rules.shape import piece
from covprop.propagate.step import Attribute, Constant, Ref, Step
from covprop.propagate.tracing.faults import source_line
from covprop.propagate.tracing.hooks import has_hooks, patched
from covprop.propagate.tracing.memory import same_memory
from covprop.propagate.tracing.value import IN_PLACE, SEEN

# In-place operations run out of place: their input may be needed by a backward pass.
OUT_OF_PLACE: dict[Any, Any] = {
    **IN_PLACE,
    **{
        getattr(Tensor, f"{name}_"): getattr(Tensor, name)
        for name in (
            *("add", "sub", "mul", "div", "squeeze", "unsqueeze"),
            *("relu", "abs", "clamp", "clip", "clamp_min", "clamp_max"),
        )
    },
    nn.functional.relu_: nn.functional.relu,
    nn.functional.leaky_relu_: nn.functional.leaky_relu,
    nn.functional.rrelu_: nn.functional.rrelu,
    torch.relu_: torch.relu,
}

SIGNS: dict[Any, int] = {
    **dict.fromkeys((operator.add, torch.add, torch.Tensor.add), 1),
    **dict.fromkeys((operator.sub, torch.sub, torch.Tensor.sub), -1),
}
"""The sign of the second operand. a ± αa is not a sum of independent values but (1 ± α)·a."""

UNBINDS = (torch.unbind, torch.Tensor.unbind)
SPLITS = (torch.chunk, torch.Tensor.chunk, torch.split, torch.Tensor.split, *UNBINDS)
"""Functions with several results. A step has one, so each result becomes a step: `piece_of`."""


def flatten_graph(
    model: nn.Module, graph: fx.Graph, made: dict[str, Any]
) -> tuple[list[Step], int]:
    """The graph's nodes as steps in order, and the slot of the output."""
    modules = dict(model.named_modules())
    slots: dict[fx.Node, int] = {}
    steps: list[Step] = []
    output = 0
    needless = unused(graph)
    split: dict[fx.Node, Any] = {}  # calls of SPLITS, whose results are steps of their own

    def convert(arg: Any) -> Any:
        refer: Any = lambda node: Ref(slots[node])  # noqa: E731  (map_arg's type is narrower)
        return fx.node.map_arg(arg, refer)

    for node in graph.nodes:
        if node.op == "placeholder" and not slots:
            slots[node] = 0
            continue
        if node in needless:
            continue
        if node.op == "output":
            output = slots.get(node.args[0], -1) if isinstance(node.args[0], fx.Node) else -1
            break
        target = target_of(node, modules, made)
        plain = type(target) is nn.Identity and not has_hooks(target) and not patched(target)
        if plain:  # its output is its input
            slots[node] = slots[node.args[0]]
            continue
        in_place = getattr(target, "inplace", False) or node.kwargs.get("inplace") is True
        if target in OUT_OF_PLACE:
            target, in_place = OUT_OF_PLACE[target], True
        if target in SPLITS and taken_apart(node):
            split[node] = target  # each of its values is a step
            continue
        args: tuple[Any, ...] = () if node.op == "placeholder" else tuple(node.args)
        kwargs = dict(node.kwargs)
        if target is operator.getitem and args[0] in split:
            target, args, kwargs = piece_of(args[0], split[args[0]], args[1])
        args, kwargs = convert(args), convert(kwargs)
        if target in SIGNS and (whole := multiple_of_one(SIGNS[target], args, kwargs)):
            target, args, kwargs = operator.mul, whole, {}
        name = node.target if node.op in ("call_module", "get_attr") else node.name
        old = slots[next(iter(node.all_input_nodes))] if in_place else None
        steps.append(Step(str(name), (target,), args, kwargs, source_line(node), overwrites=old))
        slots[node] = len(steps)
        if in_place:  # from here on, the overwritten value is this one
            slots.update({other: len(steps) for other, slot in slots.items() if slot == old})
    return steps, output


def target_of(node: fx.Node, modules: dict[str, nn.Module], made: dict[str, Any]) -> Any:
    """What a node runs: a module, a function, an Attribute or a Constant."""
    target: Any = node.target
    if node.op == "call_module":
        return modules[target]
    if node.op == "call_method":
        return getattr(torch.Tensor, target)
    if node.op == "placeholder":
        return Constant(node.args[0] if node.args else None)
    if node.op == "get_attr":
        owner, _, name = target.rpartition(".")
        if target in made:
            return Constant(made[target])
        calls = [user for user in node.users if user.op != "call_module"]
        written = any(writes(user) and user.args[:1] == (node,) for user in calls)
        return Attribute(modules[owner], name, copied=written)
    return target


def multiple_of_one(
    sign: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, float] | None:
    """The factors of a sum whose operands are one value: a and 1 ± α; None for other sums."""
    operands = [*args, *(kwargs[name] for name in ("input", "other") if name in kwargs)]
    alpha = kwargs.get("alpha", 1)
    if len(operands) != 2 or operands[0] != operands[1] or not isinstance(alpha, int | float):
        return None
    return operands[0], 1 + sign * alpha


def writes(node: fx.Node) -> bool:
    """Whether a node may change a value that others read, or statistics of a module."""
    if node.op == "call_module" or node.target in OUT_OF_PLACE or node.target is operator.setitem:
        return True
    name = str(node.target if node.op == "call_method" else getattr(node.target, "__name__", ""))
    given = node.kwargs.get("out") is not None or node.kwargs.get("inplace") is True
    return given or name.endswith("_")


def piece_of(whole: fx.Node, split: Any, index: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """What makes one of the values that the node `whole` makes, with its arguments."""
    options = dict(whole.kwargs)
    x, *how = whole.args or (options.pop("input"),)
    if split in UNBINDS:
        return torch.select, (x, *(how or [options.get("dim", 0)]), index), {}
    return piece, (x, index, split, *how), options


def taken_apart(node: fx.Node) -> bool:
    """Whether the results of a node are read one by one only, as in a, b = x.chunk(2, 1)."""
    return all(
        user.target is operator.getitem and isinstance(user.args[1], int) for user in node.users
    )


def unused(graph: fx.Graph) -> set[fx.Node]:
    """Nodes that do not contribute to the output: assertions, statistics that are not read."""
    found: set[fx.Node] = set()
    later: list[fx.Node] = []  # the others
    for node in reversed(graph.nodes):
        kept = node.op in ("placeholder", "output") or writes(node)
        if node.target in IN_PLACE:  # what it changes may be read by another name
            kept = any(shared(node.args[0], read) for one in later for read in one.all_input_nodes)
        if not kept and found.issuperset(node.users):
            found.add(node)
        else:
            later.append(node)
    return found


def shared(changed: Any, read: fx.Node) -> bool:
    """Whether two values of the trace may be one, or views of one."""
    pair = [node.meta.get(SEEN, (None,))[0] for node in (changed, read)]
    known = all(isinstance(value, Tensor) for value in pair)
    return changed is read or (same_memory(*pair) if known else pair == [None, None])
