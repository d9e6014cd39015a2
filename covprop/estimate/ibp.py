"""Interval bounds: a box around every value that holds every input of a box.

Boxes are propagated step by step in the form centre ± radius (Gowal et al. 2018). An affine step
maps the centre by itself and the radius by the absolute values of its matrix, which gives the
smallest box; an activation maps each interval to its exact range. Boxes forget how units move
together, so they grow with depth: what is said of them always holds, and is seldom tight.
"""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from covprop.errors import InvalidInput, UnsupportedModel
from covprop.layers import HermiteActivation
from covprop.logits import as_logits
from covprop.mode import switched
from covprop.pixels import check_range
from covprop.propagate.inputs import type_named
from covprop.propagate.plan import Plan
from covprop.propagate.registry import Call, Layer, describe, kind, option
from covprop.propagate.rules import activation, conv, linear
from covprop.propagate.settings import PAPER
from covprop.propagate.step import Step
from covprop.propagate.tracing.trace import build, check_module

WEIGHTED = (conv.conv, conv.conv_transpose, linear.linear, linear.matmul)
"""The rules of steps whose rows mix signs; every other affine step has rows of one sign."""

# Where each activation turns from falling to rising, beside those that only rise.
VALLEYS: dict[Any, float] = {
    nn.SiLU: -1.278464542761074,
    nn.functional.silu: -1.278464542761074,
    nn.Mish: -1.1924312145154952,
    nn.functional.mish: -1.1924312145154952,
    nn.Hardswish: -1.5,
    nn.functional.hardswish: -1.5,
}
GELU_VALLEYS = {"none": -0.7517915247, "tanh": -0.7524614221}
RISING = {
    *(nn.ReLU, nn.functional.relu, nn.functional.relu_, torch.relu, torch.relu_),
    *(torch.Tensor.relu, torch.Tensor.relu_, nn.ReLU6, nn.functional.relu6),
    *(nn.Tanh, nn.functional.tanh, torch.tanh, torch.Tensor.tanh),
    *(nn.Sigmoid, nn.functional.sigmoid, torch.sigmoid, torch.Tensor.sigmoid),
    *(nn.LogSigmoid, nn.functional.logsigmoid, nn.Softplus, nn.functional.softplus),
    *(nn.Softsign, nn.functional.softsign, nn.Softshrink, nn.functional.softshrink),
    *(nn.Tanhshrink, nn.functional.tanhshrink, nn.SELU, nn.functional.selu, torch.selu),
    *(nn.Hardtanh, nn.functional.hardtanh, nn.Hardsigmoid, nn.functional.hardsigmoid),
    *(torch.clamp, torch.Tensor.clamp, torch.clip, torch.Tensor.clip),
    *(torch.clamp_min, torch.Tensor.clamp_min, torch.clamp_max, torch.Tensor.clamp_max),
    *(torch.maximum, torch.Tensor.maximum, torch.minimum, torch.Tensor.minimum),
}
RANDOM = (nn.RReLU, nn.functional.rrelu, nn.functional.rrelu_, torch.rrelu)
KINKED = {
    *(nn.LeakyReLU, nn.functional.leaky_relu, nn.functional.leaky_relu_),
    *(nn.PReLU, nn.functional.prelu, nn.ELU, nn.functional.elu, nn.CELU, nn.functional.celu),
    *activation.ABS,
}
"""Rising on either side of 0, or turning there where the slope of the left side is negative."""


class Box(NamedTuple):
    """lower ≤ value ≤ upper, entry by entry."""

    lower: Tensor
    upper: Tensor

    @property
    def center(self) -> Tensor:
        return 0.5 * (self.lower + self.upper)

    @property
    def radius(self) -> Tensor:
        return 0.5 * (self.upper - self.lower)


def ibp(model: nn.Module, x: Tensor, epsilon: float) -> Box:
    """Bounds [b, classes] on the logits of every input whose entries differ from x by at most ε.

    The ℓ∞ box of half-width ε holds the ℓ2 ball of radius ε, so the bounds hold there too. They
    speak of the network itself, not of the smoothed classifier, and hold up to rounding.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> box = ibp(model, torch.zeros(1, 2), epsilon=0.1)
        >>> bool((box.lower <= model(torch.full((1, 2), 0.1))).all())
        True
    """
    if not isinstance(x, Tensor) or x.ndim < 2:
        found = f"of shape {list(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
        raise InvalidInput(f"x is {found}: give a batch of images, as a tensor.")
    if not x.is_floating_point():
        raise InvalidInput(f"x is {x.dtype}: give float images.")
    check_range(x, (-math.inf, math.inf))
    if not isinstance(epsilon, Real) or not 0 <= epsilon < float("inf"):
        raise InvalidInput(f"epsilon is {epsilon}: give the half-width of the box, 0 or more.")
    check_module(model)
    with switched(model, training=False), torch.no_grad():
        plan = build(model, tuple(x.shape[1:]), PAPER)
        with type_named(x, model):
            box = boxes(plan, Box(x - epsilon, x + epsilon))[plan.output]
    assert box is not None
    as_logits(box.lower, len(x), type(model).__name__)
    return box


@torch.no_grad()
def boxes(plan: Plan, box: Box) -> list[Box | None]:
    """The box of every slot, None for values without noise. The model must be in eval mode."""
    values: list[Any] = [box.center]
    found: list[Box | None] = [box]
    for step in plan.steps:
        if step.rule is None:
            values.append(step.run(values))
            found.append(None)
            continue
        made = _activate(step, values, found) if step.rule.mean else _affine(step, values, found)
        values.append(made.center)
        found.append(made)
    return found


def _affine(step: Step, values: list[Any], found: list[Box | None]) -> Box:
    assert step.rule is not None
    if step.rule.cov.__module__.split(".")[:3] != ["covprop", "propagate", "rules"]:
        raise UnsupportedModel(
            f"interval bounds know no bound for {step.name} ({describe(step.operation)}), "
            "which has a rule of its own; leave it out, or use the sampled estimator."
        )
    center = step.run(values)
    slots = list(dict.fromkeys(step.random))
    radii = {slot: box.radius for slot in slots if (box := found[slot]) is not None}
    if step.rule.cov in WEIGHTED:
        radius = _absolute(step, values, slots[0], radii[slots[0]])
    else:
        still = {slot: torch.zeros_like(radii[slot]) for slot in slots}
        at_rest = step.run(_with(values, still))
        # Rows of one sign: |A| r = |A r|. Operands count one by one, as a − b mixes signs.
        moved = [step.run(_with(values, {**still, slot: radii[slot]})) for slot in slots]
        radius = sum((abs(value - at_rest) for value in moved), start=torch.zeros_like(at_rest))
    return Box(center - radius, center + radius)


def _with(values: list[Any], given: dict[int, Tensor]) -> list[Any]:
    return [given.get(slot, value) for slot, value in enumerate(values)]


def _absolute(step: Step, values: list[Any], slot: int, radius: Tensor) -> Tensor:
    """|A| r for a convolution, a linear layer or x @ W."""
    values = _with(values, {slot: radius})
    if isinstance(step.target, nn.Module):
        layer = plain(step.target)
        named = dict(layer.named_parameters())
        state = {
            name: torch.zeros_like(p) if name.endswith("bias") else p.abs()
            for name, p in named.items()
        }
        return torch.func.functional_call(layer, state, (radius,))
    call = step.layer(values)
    assert isinstance(call, Call)
    args = [_magnitude(place, arg) for place, arg in enumerate(call.args)]
    return call.function(
        *args, **{name: _magnitude(name, arg) for name, arg in call.kwargs.items()}
    )


def plain(layer: nn.Module) -> nn.Module:
    """A layer with a weight and a bias; parametrized, one of its plain type with what it makes of
    them (torch takes parametrizations off a type, and with it off every copy of the layer)."""
    if not parametrize.is_parametrized(layer):
        return layer
    twin = object.__new__(kind(layer))
    made = {name: getattr(layer, name) for name in ("weight", "bias")}
    vars(twin).update({**vars(layer), "_parameters": made, "_modules": {}})
    return twin


def _magnitude(key: int | str, arg: Any) -> Any:
    """An argument of F.conv2d(x, weight, bias, …), F.linear(x, weight, bias) or x @ weight."""
    if key in (1, "weight", "other"):
        return arg.abs()
    return None if key in (2, "bias") else arg


def _activate(step: Step, values: list[Any], found: list[Box | None]) -> Box:
    box = found[step.random[0]]
    assert box is not None
    assert step.rule is not None
    layer = step.layer(values)
    turns = turning_points(step.operation, layer)
    if turns is None:
        if step.rule.mean is not activation.elementwise_mean:
            raise UnsupportedModel(
                f"interval bounds do not know where {step.name} "
                f"({describe(step.operation)}) rises and falls; register it with "
                "covprop.elementwise(..., slope=...)."
            )
        # All that is known is the largest slope: f moves no further than α times its input.
        one = torch.ones(1, 1, dtype=box.lower.dtype, device=box.lower.device)
        radius = step.rule.cov(layer, one, PAPER).sqrt().item() * box.radius
        center = layer(box.center)
        return Box(center - radius, center + radius)
    inner = [torch.minimum(torch.maximum(box.lower.new_tensor(t), box.lower), box.upper)
             for t in turns]  # fmt: skip
    extremes = torch.stack([layer(at) for at in (box.lower, box.upper, *inner)])
    return Box(extremes.amin(0), extremes.amax(0))


def turning_points(operation: Any, layer: Layer) -> list[float] | None:
    """Where an activation may turn between rising and falling; None where nothing is known."""
    if operation in RISING:
        return []
    if operation in KINKED:
        return [0.0]
    if operation in RANDOM and not option(layer, 3, "training", False):  # else it draws a range
        return [0.0]
    if operation in VALLEYS:
        return [VALLEYS[operation]]
    if operation in (nn.GELU, nn.functional.gelu):
        return [GELU_VALLEYS[option(layer, 1, "approximate", "none")]]
    if isinstance(layer, HermiteActivation):
        return hermite_turns(layer.coefficients.detach().double().cpu().numpy())
    return None


def hermite_turns(coefficients: np.ndarray) -> list[float]:
    """Candidates for the turning points of Σ_k c_k h_k: the real parts of the roots of its
    derivative. A candidate too many does no harm: the range then contains a value it has anyway."""
    degrees = np.arange(len(coefficients))
    factorials = np.cumprod(np.maximum(degrees, 1).astype(float))
    series = np.polynomial.HermiteE(coefficients / np.sqrt(factorials))
    return [float(root.real) for root in np.atleast_1d(series.deriv().roots())]
