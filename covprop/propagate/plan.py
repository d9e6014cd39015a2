"""A model as a flat tuple of steps, and the passes that loop over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from covprop.gaussian import Gaussian
from covprop.propagate.channels import expand_pixels
from covprop.propagate.settings import Settings
from covprop.propagate.step import Step
from covprop.propagate.tracing.links import Link

Correct = Callable[[int, Tensor], Tensor]
"""(slot, propagated covariance) -> corrected covariance."""

Deviation = Tensor | tuple[Tensor, Tensor] | None
"""Standard deviations of a step's input, perhaps with their inverses; None if it needs none."""


@dataclass(frozen=True)
class Plan:
    """The steps of a model for one input shape. Slot 0 is the image; step k writes slot k + 1."""

    steps: tuple[Step, ...]
    output: int
    input_shape: tuple[int, ...]
    root: nn.Module  # the model that was traced
    links: tuple[Link, ...] = ()  # where in the model the steps' modules were

    def covariances(
        self, cov: Tensor, settings: Settings, correct: Correct | None = None
    ) -> list[Tensor | None]:
        """The covariance of every slot, from the weights and σ alone."""
        covs: list[Tensor | None] = [cov]
        values: list[Any] = [stand_in(self.typed(cov), self.input_shape)]
        self.extend_covariances(covs, values, len(self.steps), settings, correct)
        return covs

    def extend_covariances(
        self, covs: list[Tensor | None], values: list[Any], stop: int, settings: Settings,
        correct: Correct | None = None,
    ) -> None:  # fmt: skip
        """Continue a covariance pass up to step `stop`; `values` are those without noise, computed
        for a batch of one image: what they are for an image does not depend on the batch."""
        for slot in range(len(covs), stop + 1):
            step = self.steps[slot - 1]
            if step.rule is None:
                covs.append(None)
                values.append(step.run(values))
                continue
            out = step.covariance(step.layer(values), covs, values, settings)
            covs.append(correct(slot, out) if correct else out)
            values.append(stand_in(self.typed(out), step.out_shape) if step.sized else None)

    def typed(self, cov: Tensor) -> Tensor:
        """A tensor of the type of the weights, which may be another than that of Σ."""
        return next((p for p in self.root.parameters() if p.is_floating_point()), cov)

    def logit_covariance(self, cov: Tensor | None) -> Tensor:
        """The output's covariance over classes: logits may be the pixels of a flattened image."""
        assert cov is not None
        return expand_pixels(
            cov, self.steps[self.output - 1].out_shape[0] if self.output else len(cov)
        )

    def deviations(self, covs: Sequence[Tensor | None]) -> list[Tensor | None]:
        """What the mean pass needs from the covariances: one vector for each nonlinear step."""
        return [step.deviation(covs) for step in self.steps]

    def means(self, x: Tensor, deviations: Sequence[Tensor | None], settings: Settings) -> Tensor:
        """The mean of the output, given the deviations at every nonlinear step."""
        values: list[Any] = [x]
        self.extend_means(values, deviations, settings)
        return values[self.output]

    def extend_means(
        self, values: list[Any], deviations: Sequence[Deviation], settings: Settings
    ) -> None:
        """Continue a mean pass for as many steps as there are deviations."""
        start = len(values) - 1
        for step, std in zip(self.steps[start : start + len(deviations)], deviations, strict=True):
            if std is None:
                values.append(step.run(values))
            elif step.rule is not None and step.rule.beside is not None:
                slot = step.random[0]
                pair = std if isinstance(std, tuple) else (std, None)
                out, values[slot] = step.rule.beside(values[slot], *pair, step.read_again)
                values.append(out)
            else:
                assert isinstance(std, Tensor)
                values.append(step.mean(step.layer(values), std, values, settings))
            for slot in step.frees:
                values[slot] = None

    def needs_image(self) -> bool:
        """Whether Σ depends on the images: it does if a rule needs the mean, as batch norm does in
        training."""
        return any(step.needs_image() for step in self.steps)

    def run(
        self, x: Tensor, cov: Tensor, settings: Settings, correct: Correct | None = None
    ) -> Gaussian:
        """Mean and covariance side by side, for rules that need the mean to map a covariance."""
        values: list[Any] = [x]
        covs: list[Tensor | None] = [cov]
        for slot, step in enumerate(self.steps, start=1):
            if step.rule is None:
                values.append(step.run(values))
                covs.append(None)
            else:
                layer = step.layer(values)
                with full_precision(x):
                    out = step.covariance(layer, covs, values, settings)
                    covs.append(correct(slot, out) if correct else out)
                    std = step.deviation(covs)
                values.append(step.mean(layer, std, values, settings))
            for slot_done in step.frees:
                values[slot_done] = None
        return Gaussian(values[self.output], self.logit_covariance(covs[self.output]))

    def run_plain(self, x: Tensor, visit: Callable[[int, Tensor], None]) -> None:
        """Run the network step by step, calling `visit(slot, value)` for every random value."""
        values: list[Any] = [x]
        for slot, step in enumerate(self.steps, start=1):
            values.append(step.run(values))
            if step.rule is not None:
                visit(slot, values[slot])
            for slot_done in step.frees:
                values[slot_done] = None


def stand_in(like: Tensor, shape: tuple[int, ...], batch: int = 1) -> Tensor:
    """Zeros of a noisy value's shape, for steps that read its size; they take no memory."""
    return like.new_zeros(()).expand(batch, *shape)


def full_precision(x: Tensor) -> torch.autocast:
    """Turn autocast off, which is for the mean; `Settings.products` sets the precision of Σ."""
    return torch.autocast(device_type=x.device.type, enabled=False)
