"""The plans of one model, for training and for evaluation."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from covprop.errors import InvalidInput, UnsupportedModel
from covprop.mode import switched
from covprop.names import nearest
from covprop.propagate.plan import Plan
from covprop.propagate.settings import Settings
from covprop.propagate.tracing.trace import build


class Plans:
    """The plans of a model by `model.training`: one and the same, unless forward branches on
    `self.training`, where a trace sees only one branch.

    A model in evaluation may do in training what cannot be propagated (stochastic depth, outputs
    for a second loss): that is an error once it is put in training.
    """

    def __init__(self, model: nn.Module, shape: tuple[int, ...], settings: Settings) -> None:
        self.refused: tuple[str, tuple] = "", ()
        own = build(model, shape, settings)
        check_names(own, settings)
        self.known = {model.training: own}
        try:
            with switched(model, not model.training):
                other = build(model, shape, settings)
        except UnsupportedModel as error:
            if model.training:
                raise
            self.refused = f"in training, {error}", error.faults
            return
        same = [a.args == b.args and a.kwargs == b.kwargs and a.target is b.target
                for a, b in zip(own.steps, other.steps, strict=False)]  # fmt: skip
        if len(own.steps) == len(other.steps) and all(same):
            other = own
        self.known[not model.training] = other

    def __getitem__(self, training: bool) -> Plan:
        if training not in self.known:
            raise UnsupportedModel(*self.refused)
        return self.known[training]

    def measured(self) -> list[Plan]:
        """The plan for evaluation, and that for training if it alone has some of the layers."""
        plan = self[False]
        other = self.known.get(True, plan)
        names = [{step.name for step in p.steps if step.rule is not None} for p in (plan, other)]
        return [plan] if names[1] <= names[0] else [plan, other]


def check_names(plan: Plan, settings: Settings) -> None:
    """Refuse names in a mapping of r_max that are no layers: they would be ignored."""
    if isinstance(settings.r_max, Mapping):
        names = [step.name for step in plan.steps if step.rule is not None]
        for name in settings.r_max:
            if name not in names:
                raise InvalidInput(
                    f"r_max names {name}, which is no layer{nearest(name, names)}; "
                    f"the model has {', '.join(names)}."
                )


def check_same_steps(one: Plan, other: Plan) -> None:
    """Refuse plans with different steps: what is measured in evaluation is used in training."""
    steps = [[(step.name, step.channels) for step in plan.steps] for plan in (one, other)]
    if steps[0] != steps[1]:
        raise UnsupportedModel(
            "calibrated=True needs a forward that runs the same layers in training and in "
            "evaluation; this one asks self.training for other ones."
        )
