"""From a model to its plan: trace it with torch.fx, then look at every step."""

from __future__ import annotations

import inspect
import operator
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.parameter import is_lazy

from covprop.errors import UnsupportedModel, first_line
from covprop.mode import attributes_kept
from covprop.propagate.plan import Attribute, Constant, Plan, Ref, Step, refs
from covprop.propagate.rules.shape import piece
from covprop.propagate.settings import Settings
from covprop.propagate.tracing.constant import batch_dependent, with_sizes
from covprop.propagate.tracing.faults import failed_line, source_line, unsupported
from covprop.propagate.tracing.hooks import has_hooks, patched, refuse_hooked_weights, root_hooks
from covprop.propagate.tracing.links import links_of
from covprop.propagate.tracing.look import (
    float_type,
    hidden_writes,
    look,
    normed_by_the_batch,
    same_memory,
)
from covprop.propagate.tracing.tracer import Tracer, no_logits, nothing_drawn
from covprop.propagate.tracing.value import IN_PLACE, SEEN, as_tensors

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


def check_module(model: nn.Module) -> None:
    """Refuse anything but a module, and TorchScript, which torch.fx cannot trace."""
    if not isinstance(model, nn.Module):
        raise UnsupportedModel(f"a {type(model).__name__} is no nn.Module; wrap it in one.")
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise UnsupportedModel(
            f"{type(model).__name__} is or holds TorchScript, which torch.fx cannot trace: give "
            "the module that it was made from."
        )


UNTRACEABLE = {
    "'len' is not supported": "write x.shape[0] for the len(x) of a batch",
    "module is not installed as a submodule": "keep layers that stand in a list or a dict in an "
    "nn.ModuleList or an nn.ModuleDict",
    "does not support item assignment": "put the parts together by torch.cat instead of writing "
    "them into a tensor",
    "a plain number of": "compute with the value itself, as in x * self.scale, or keep the number",
}
"""What torch.fx says, in part, and what to do then."""
ANYTHING_ELSE = (
    "move control flow that depends on the data out of forward, or make the block a module with "
    "its own rule (covprop.rule)"
)


def trace(
    model: nn.Module, input_shape: tuple[int, ...]
) -> tuple[fx.Graph, dict[str, Any], list[nn.Module]]:
    """The model's fx graph, the tensors that forward creates, and all modules it calls.

    Arguments of forward after the first take their defaults. fx leaves the tensors on the model as
    attributes; they are removed from it, as is whatever forward keeps.
    """
    check_traceable(model)
    parameters = list(inspect.signature(model.forward).parameters.values())[1:]
    needed = [
        p.name for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]  # fmt: skip
    if needed:
        raise UnsupportedModel(
            f"{type(model).__name__}.forward needs {', '.join(needed)} beside the image: "
            "give them defaults, or wrap the model in a module that takes the image alone."
        )
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    tracer = Tracer(defaults, torch.empty(input_shape, device="meta", dtype=float_type(model)))
    try:
        with attributes_kept(model) as made, nothing_drawn(model), as_tensors():
            graph = tracer.trace(model)
    except UnsupportedModel:
        raise
    except Exception as error:
        first, where = first_line(error), failed_line(error)
        place = f" at {where}" if where else ""
        remedy = next((UNTRACEABLE[part] for part in UNTRACEABLE if part in first), ANYTHING_ELSE)
        raise UnsupportedModel(
            f"torch.fx cannot trace {type(model).__name__}{place} ({first}): {remedy}."
        ) from error
    return graph, made, tracer.called


def check_traceable(model: nn.Module) -> None:
    """Refuse a network in DataParallel or its like, and layers without sizes."""
    for name, module in model.named_modules():
        if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            raise UnsupportedModel(
                f"{type(module).__name__}{f' ({name})' if name else ''} hides the network from "
                "torch.fx: give its .module, and wrap the propagator in its place."
            )
    if any(is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers())):
        raise UnsupportedModel(
            f"{type(model).__name__} has lazy layers whose sizes are not known yet: run it on a "
            "batch of images once."
        )


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


def build(model: nn.Module, input_shape: tuple[int, ...], settings: Settings) -> Plan:
    """Plan the propagation through a model, or raise `UnsupportedModel` with every fault.

    The model itself is not run: shapes are found on meta tensors. Nothing of it changes, nor do
    torch's generators move.
    """
    check_module(model)
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    refuse_hooked_weights(model)
    like = next(chain(model.parameters(), model.buffers()), torch.empty(0))
    image = torch.empty(input_shape, dtype=float_type(model), device=like.device)
    with attributes_kept(model), torch.random.fork_rng([like.device] if like.is_cuda else []):
        return plan_of(model, image, settings)


def plan_of(model: nn.Module, image: Tensor, settings: Settings) -> Plan:
    """The plan of a model that may be changed; `image` tells shape, type and device."""
    input_shape = tuple(image.shape)
    graph, made, called = trace(model, input_shape)
    steps, output = flatten_graph(model, graph, made)
    two = look(model, steps, input_shape, settings)
    faults = [*two.faults, *hidden_writes(steps, two.values, output)]
    if faults:
        raise unsupported(type(model).__name__, faults)
    logits = two.values[output] if output >= 0 else None
    if not isinstance(logits, Tensor) or two.covs[output] is None or logits.ndim != 2:
        raise no_logits(model)
    if faults := root_hooks(model, two.values[0], logits):
        raise unsupported(type(model).__name__, faults)
    done = with_sizes(two.done)
    if faults := [*batch_dependent(done, two, image), *normed_by_the_batch(done, two)]:
        raise unsupported(type(model).__name__, faults)
    owners = [step.target.owner for step in done if isinstance(step.target, Attribute)]
    links = links_of(model, [*called, *owners])
    return Plan(tuple(free_early(done, output)), output, input_shape, model, links)


def free_early(steps: list[Step], output: int) -> list[Step]:
    """Note with each step the values that no later step reads, so that they can be freed."""
    last_use: dict[int, int] = {}
    for number, step in enumerate(steps):
        for slot in refs((step.args, step.kwargs)):
            last_use[slot] = number
    frees: dict[int, list[int]] = {}
    for slot, number in last_use.items():
        if slot != output:
            frees.setdefault(number, []).append(slot)
    return [replace(step, frees=tuple(frees.get(i, ()))) for i, step in enumerate(steps)]
