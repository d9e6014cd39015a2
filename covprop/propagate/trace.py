"""From a model to its plan: trace it with torch.fx, then look at every step on meta tensors.

The look tells every shape and finds every operation no rule covers, before any number is
computed and without running or touching the model.
"""

from __future__ import annotations

import inspect
import operator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn

import covprop.propagate.rules  # noqa: F401  (registers every rule)
from covprop.errors import UnsupportedModel
from covprop.propagate.faults import Fault, explain, source_line, unsupported
from covprop.propagate.plan import Attribute, Constant, Plan, Ref, Step, fill, refs
from covprop.propagate.registry import Unsupported, describe, find, has_rule
from covprop.propagate.settings import Settings

# In-place operations run out of place: their input may be needed by a backward pass.
OUT_OF_PLACE: dict[Any, Any] = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
    torch.Tensor.add_: torch.Tensor.add,
    torch.Tensor.sub_: torch.Tensor.sub,
    torch.Tensor.mul_: torch.Tensor.mul,
    torch.Tensor.div_: torch.Tensor.div,
    torch.Tensor.relu_: torch.Tensor.relu,
    torch.Tensor.squeeze_: torch.Tensor.squeeze,
    torch.Tensor.unsqueeze_: torch.Tensor.unsqueeze,
    nn.functional.relu_: nn.functional.relu,
    nn.functional.leaky_relu_: nn.functional.leaky_relu,
    torch.relu_: torch.relu,
}


# a + a and a − a are no sums of independent values.
DOUBLED: dict[Any, int] = {
    **dict.fromkeys((operator.add, torch.add, torch.Tensor.add), 2),
    **dict.fromkeys((operator.sub, torch.sub, torch.Tensor.sub), 0),
}


class _Tracer(fx.Tracer):
    """Traces into the user's blocks; a module that has a rule of its own is one step."""

    def __init__(self) -> None:
        super().__init__()
        self.record_stack_traces = True

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return has_rule(m) or super().is_leaf_module(m, module_qualified_name)


def trace(model: nn.Module) -> tuple[fx.Graph, dict[str, Any]]:
    """The model's fx graph, with every argument after the first at its default, and the tensors
    that forward makes itself (which fx leaves on the model as attributes: taken off again)."""
    before = set(vars(model))
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
    try:
        graph = _Tracer().trace(model, concrete_args=defaults or None)
    except Exception as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UnsupportedModel(
            f"torch.fx cannot trace {type(model).__name__} ({first}): move control flow that "
            "depends on the data out of forward, or make the block a module with its own rule "
            "(covprop.rule)."
        ) from error
    finally:
        made = {name: vars(model).pop(name) for name in set(vars(model)) - before}
    return graph, made


def flatten_graph(
    model: nn.Module, graph: fx.Graph, made: dict[str, Any]
) -> tuple[list[Step], int]:
    """The graph's nodes as steps in order, and the slot of the output."""
    modules = dict(model.named_modules())
    slots: dict[fx.Node, int] = {}
    steps: list[Step] = []
    output = 0

    def convert(arg: Any) -> Any:
        refer: Any = lambda node: Ref(slots[node])  # noqa: E731  (map_arg's type is narrower)
        return fx.node.map_arg(arg, refer)

    for node in graph.nodes:
        if node.op == "placeholder" and not slots:
            slots[node] = 0
            continue
        if str(node.target).startswith("_assert") or node.target is torch._assert:
            continue  # fx checks the fixed arguments of forward; here they are constants
        if node.op == "output":
            output = slots.get(node.args[0], -1) if isinstance(node.args[0], fx.Node) else -1
            break
        in_place = False
        target: Any = node.target
        if node.op == "call_module":
            target = modules[node.target]
            if type(target) is nn.Identity:  # the very same value
                slots[node] = slots[node.args[0]]
                continue
            in_place = bool(getattr(target, "inplace", False))
        elif node.op == "get_attr":
            owner, _, name = node.target.rpartition(".")
            own = node.target in made
            target = Constant(made[name]) if own else Attribute(modules[owner], name)
        elif node.op == "call_method":
            target = getattr(torch.Tensor, node.target)
        elif node.op == "placeholder":
            target = Constant(node.args[0] if node.args else None)
        if not isinstance(target, nn.Module | Attribute | Constant) and target in OUT_OF_PLACE:
            target, in_place = OUT_OF_PLACE[target], True
        in_place = in_place or node.kwargs.get("inplace") is True
        args: tuple[Any, ...] = () if node.op == "placeholder" else convert(tuple(node.args))
        if target in DOUBLED and len(args) == 2 and args[0] == args[1] and not node.kwargs:
            target, args = operator.mul, (args[0], DOUBLED[target])
        name = node.target if node.op in ("call_module", "get_attr") else node.name
        kwargs = convert(dict(node.kwargs))
        steps.append(Step(str(name), (target,), args, kwargs, source_line(node)))
        slots[node] = len(steps)
        if in_place:  # from here on, the overwritten value is this one
            changed = next(iter(node.all_input_nodes))
            old = slots[changed]
            slots.update({other: len(steps) for other, slot in slots.items() if slot == old})
    return steps, output


class _Shapes(nn.Module):
    """Interprets the steps on meta tensors, filling in shapes and rules and gathering faults."""

    def __init__(self, model: nn.Module, steps: list[Step], settings: Settings) -> None:
        super().__init__()
        self.model, self.steps, self.settings = model, steps, settings
        self.faults: list[Fault] = []
        self.done: list[Step] = []
        self.values: list[Any] = []
        self.covs: list[Tensor | None] = []

    def forward(self, x: Tensor) -> None:
        values, covs = self.values, self.covs
        values.append(x)
        covs.append(torch.eye(x.shape[1], device="meta", dtype=x.dtype))
        for step in self.steps:
            value = self.look(step, values)
            values.append(value.to("meta") if isinstance(value, Tensor) else value)
            step, cov = self.resolve(step, values, covs)
            self.done.append(step)
            covs.append(cov)

    def look(self, step: Step, values: list[Any]) -> Any:
        """A step's value on meta tensors. A user's layer with a rule of its own may do what meta
        tensors cannot (branch on its data); it is then taken to keep its input's shape."""
        try:
            return step.run(values)
        except RuntimeError as error:
            own = isinstance(step.target, nn.Module) and has_rule(step.target)
            if not (own and "meta tensor" in str(error)):
                raise
            return torch.empty_like(values[refs(step.args)[0]])

    def apply_rule(self, step: Step, covs: list[Tensor | None], values: list[Any]) -> Tensor:
        assert step.rule is not None
        try:
            return step.covariance(step.layer(values), covs, values, self.settings)
        except (RuntimeError, TypeError, IndexError, ValueError, AttributeError) as error:
            rule, what = step.rule.cov.__name__, type(error).__name__
            raise UnsupportedModel(
                f"the rule {rule} of {step.name} failed with {what}: {error}"
            ) from error

    def resolve(
        self, step: Step, values: list[Any], covs: list[Tensor | None]
    ) -> tuple[Step, Tensor | None]:
        used = refs((step.args, step.kwargs))
        random = tuple(slot for slot in used if covs[slot] is not None)
        value = values[-1]
        if not random or not carries_noise(value):
            fixed = all(slot > 0 and self.done[slot - 1].fixed for slot in used)
            return replace(step, fixed=fixed), None
        operation = operation_of(step)
        given = operands_of(step)
        operands = tuple(
            arg.slot if isinstance(arg, Ref) and arg.slot in random else None for arg in given
        )
        shapes = tuple(_shape(fill(arg, values)) for arg in given)
        step = replace(
            step, random=random, operands=operands, shapes=shapes,
            out_shape=_shape(value), rule=find(operation),
        )  # fmt: skip
        first = covs[random[0]]
        try:
            if step.rule is None:
                raise Unsupported(*explain(operation))
            if not isinstance(value, Tensor) or value.shape[0] != values[0].shape[0]:
                raise Unsupported("its output does not keep the batch in dimension 0",
                                  "keep one row an image")  # fmt: skip
            cov = self.apply_rule(step, covs, values)
            return replace(step, channels=len(cov)), cov
        except Unsupported as error:
            what = describe(operation)
            self.faults.append(Fault(step.name, what, step.where, error.why, error.remedy))
            width = value.shape[1] if isinstance(value, Tensor) and value.ndim > 1 else 1
            return step, (first.new_empty(width, width) if first is not None else None)


def operation_of(step: Step) -> Any:
    """What a rule is registered for: the type of a module, or the function itself."""
    return type(step.target) if isinstance(step.target, nn.Module) else step.target


def operands_of(step: Step) -> list[Any]:
    """The operands of a call: the list that cat takes, or else the first two arguments."""
    given = [*step.args, *step.kwargs.values()]
    if given and isinstance(given[0], tuple | list):
        return list(given[0])
    return given[:2]


def carries_noise(value: Any) -> bool:
    """Whether a value computed from a random one is random itself: sizes and dtypes are not."""
    if isinstance(value, Tensor):
        return value.is_floating_point()
    return isinstance(value, tuple | list) and any(isinstance(v, Tensor) for v in value)


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(value.shape[1:]) if isinstance(value, Tensor) and value.ndim else ()


def build(model: nn.Module, input_shape: tuple[int, ...], settings: Settings) -> Plan:
    """Plan the propagation through a model, or raise `UnsupportedModel` with every fault.

    The model is not run: parameters and buffers are replaced by meta tensors for the look.
    """
    steps, output = flatten_graph(model, *trace(model))
    two, three = (look(model, steps, input_shape, settings, batch) for batch in (2, 3))
    if two.faults:
        raise unsupported(type(model).__name__, two.faults)
    logits = two.values[output] if output >= 0 else None
    if not isinstance(logits, Tensor) or two.covs[output] is None or logits.ndim != 2:
        raise UnsupportedModel(
            f"{type(model).__name__} must return one tensor of logits [batch, classes] computed "
            "from its input; wrap it in a module that does."
        )
    done = [
        replace(step, size=same_number(a, b))
        for step, a, b in zip(two.done, two.values[1:], three.values[1:], strict=True)
    ]
    return Plan(tuple(free_early(done, output)), output, tuple(input_shape))


def same_number(a: Any, b: Any) -> Any:
    """A value that does not change with the batch size, such as x.size(1); None for others."""
    return a if not isinstance(a, Tensor) and type(a) is type(b) and a == b else None


def look(
    model: nn.Module, steps: list[Step], input_shape: tuple[int, ...], settings: Settings,
    batch: int,
) -> _Shapes:  # fmt: skip
    """Interpret the steps on meta tensors for one batch size."""
    abstract = settings if not isinstance(settings.r_max, str) else settings.but(r_max=0.0)
    shapes = _Shapes(model, steps, abstract)
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    on_meta = {f"model.{key}": value.detach().to("meta") for key, value in state.items()}
    dtype = next((v.dtype for v in state.values() if v.is_floating_point()), torch.float32)
    x = torch.empty(batch, *input_shape, device="meta", dtype=dtype)
    try:
        torch.func.functional_call(shapes, on_meta, (x,))
    except (RuntimeError, TypeError, IndexError, ValueError) as error:
        failed = steps[len(shapes.done)]
        first = str(error).strip().splitlines()[0]
        raise UnsupportedModel(
            f"{type(model).__name__} does not accept an input of shape {list(input_shape)}: "
            f"{failed.name} ({describe(operation_of(failed))}) says: {first}"
        ) from error
    return shapes


def free_early(steps: list[Step], output: int) -> list[Step]:
    """Note with each step the values it is the last to read, so that they can go."""
    last_use: dict[int, int] = {}
    for number, step in enumerate(steps):
        for slot in refs((step.args, step.kwargs)):
            last_use[slot] = number
    frees: dict[int, list[int]] = {}
    for slot, number in last_use.items():
        if slot != output:
            frees.setdefault(number, []).append(slot)
    return [replace(step, frees=tuple(frees.get(i, ()))) for i, step in enumerate(steps)]
