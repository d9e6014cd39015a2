"""From a model to its plan: trace it with torch.fx, flatten the graph, then look at every step."""

from __future__ import annotations

import inspect
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.parameter import is_lazy

from covprop.errors import UnsupportedModel, first_line
from covprop.mode import attributes_kept
from covprop.propagate.plan import Plan
from covprop.propagate.settings import Settings
from covprop.propagate.step import Attribute, Step
from covprop.propagate.tracing.constant import batch_dependent, with_sizes
from covprop.propagate.tracing.faults import failed_line, unsupported
from covprop.propagate.tracing.flatten import flatten_graph
from covprop.propagate.tracing.hooks import refuse_hooked_weights, root_hooks
from covprop.propagate.tracing.links import links_of
from covprop.propagate.tracing.look import float_type, look, normed_by_the_batch
from covprop.propagate.tracing.memory import hidden_writes
from covprop.propagate.tracing.tracer import Tracer, no_logits, nothing_drawn
from covprop.propagate.tracing.value import as_tensors

UNTRACEABLE = {
    "'len' is not supported": "write x.shape[0] for the len(x) of a batch",
    "module is not installed as a submodule": "keep layers that stand in a list or a dict in an "
    "nn.ModuleList or an nn.ModuleDict",
    "does not support item assignment": "put the parts together by torch.cat instead of writing "
    "them into a tensor",
    "it asks for a type": "convert without asking, as in x.to(self.weight.dtype), or let an option "
    "of the module decide",
    "a plain number of": "compute with the value itself, as in x * self.scale, or keep the number",
}
"""What torch.fx says, in part, and what to do then."""
ANYTHING_ELSE = (
    "move control flow that depends on the data out of forward, or make the block a module with "
    "its own rule (covprop.rule)"
)


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
        for slot in step.reads:
            last_use[slot] = number
    frees: dict[int, list[int]] = {}
    for slot, number in last_use.items():
        if slot != output:
            frees.setdefault(number, []).append(slot)
    return [replace(step, frees=tuple(frees.get(i, ()))) for i, step in enumerate(steps)]


def check_module(model: nn.Module) -> None:
    """Refuse anything but a module, and TorchScript, which torch.fx cannot trace."""
    if not isinstance(model, nn.Module):
        raise UnsupportedModel(f"a {type(model).__name__} is no nn.Module; wrap it in one.")
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise UnsupportedModel(
            f"{type(model).__name__} is or holds TorchScript, which torch.fx cannot trace: give "
            "the module that it was made from."
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
