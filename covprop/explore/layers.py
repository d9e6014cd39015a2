"""Inside the network: the layers to choose from, propagated and sampled values at one pixel."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from covprop.errors import InvalidInput
from covprop.explore.plain import ellipse
from covprop.gaussian import Gaussian
from covprop.propagate.plan import Plan
from covprop.propagate.propagator import Propagator
from covprop.propagate.registry import describe

CACHE_BYTES = 512 << 20


@dataclass(frozen=True)
class NoisyLayer:
    """A step of the network whose value carries noise."""

    slot: int
    name: str
    kind: str
    channels: int


def layers_of(plan: Plan) -> list[NoisyLayer]:
    """Every step that has two noisy channels to show."""
    return [
        NoisyLayer(slot, step.name, describe(step.operation), step.channels)
        for slot, step in enumerate(plan.steps, start=1)
        if step.rule is not None and step.channels > 1
    ]


def unfolded(value: Tensor, channels: int) -> Tensor:
    """A value as [b, channels, *spatial]; flattened maps carry one covariance a channel still."""
    return value if value.shape[1] == channels else value.unflatten(1, (channels, -1))


def place(value: Tensor, channels: int) -> list[int]:
    """The pixel in the middle of a feature map."""
    return [size // 2 for size in unfolded(value, channels).shape[2:]]


def at_place(value: Tensor, channels: int) -> Tensor:
    """Values [b, channels] at the pixel in the middle."""
    value = unfolded(value, channels)
    for size in value.shape[2:]:
        value = value[:, :, size // 2]
    return value


class Covariances(NamedTuple):
    """Σ after every step for one σ, and the deviations the mean pass needs."""

    covs: list[Tensor | None]
    deviations: list[Tensor | None]

    def size(self) -> int:
        return sum(c.numel() * c.element_size() for c in self.covs if c is not None)


class Inside:
    """The propagation through a model, for any σ, up to any layer.

    The model is traced once. Σ depends on σ alone and is kept for those seen lately, so that a
    view of another image at the same σ costs no more than a forward pass.
    """

    def __init__(self, model: nn.Module, shape: Sequence[int]) -> None:
        self.prop = Propagator(model, 1.0, shape)
        self.layers = layers_of(self.prop.plan)
        self._cache: OrderedDict[float, Covariances] = OrderedDict()

    def output(self, x: Tensor, sigma: float) -> Gaussian:
        """Mean and covariance of the logits."""
        return self.gaussian(x, sigma, self.prop.plan.output)

    @torch.no_grad()
    def gaussian(self, x: Tensor, sigma: float, slot: int) -> Gaussian:
        """Mean and covariance after a step."""
        plan, settings = self.prop.plan, self.prop.settings
        part = replace(plan, steps=plan.steps[:slot], output=slot)
        if plan.needs_image():
            eye = torch.eye(x.shape[1], device=x.device)
            return part.run(x, sigma**2 * eye, settings)
        known = self._covariances(sigma)
        cov = known.covs[slot]
        assert cov is not None
        return Gaussian(part.means(x, known.deviations[:slot], settings), cov)

    def choose(
        self, x: Tensor, sigma: float, layer: int, channels: tuple[int, int] | None
    ) -> tuple[NoisyLayer, tuple[int, int]]:
        """A layer by its place in `layers`, and two channels: those of largest variance if None."""
        if not 0 <= layer < len(self.layers):
            raise InvalidInput(f"there is no layer {layer}: choose 0 to {len(self.layers) - 1}.")
        chosen = self.layers[layer]
        if channels is None:
            variance = torch.diagonal(self.gaussian(x, sigma, chosen.slot).cov)
            first, second = sorted(variance.topk(2).indices.tolist())
            return chosen, (first, second)
        a, b = channels
        if a == b or not (0 <= a < chosen.channels and 0 <= b < chosen.channels):
            raise InvalidInput(
                f"{chosen.name} has channels 0 to {chosen.channels - 1}: choose two different "
                f"ones, not {a} and {b}."
            )
        return chosen, (a, b)

    def ellipse(
        self, x: Tensor, sigma: float, layer: NoisyLayer, channels: tuple[int, int]
    ) -> dict[str, Any]:
        """The propagated Gaussian of two channels at the pixel in the middle."""
        out = self.gaussian(x, sigma, layer.slot)
        mean = at_place(out.mean, layer.channels)[0]
        return {
            "channels": list(channels),
            "place": place(out.mean, layer.channels),
            **ellipse(mean, out.cov, channels),
        }

    def run(
        self, noisy: Tensor, layer: NoisyLayer, channels: tuple[int, int]
    ) -> tuple[Tensor, Tensor]:
        """The network itself: logits, and two channels after a layer at the pixel in the middle."""
        seen: dict[str, Tensor] = {}

        def visit(slot: int, value: Tensor) -> None:
            # Indexing copies, as it must: a later step may work in place.
            if slot == layer.slot:
                seen["points"] = at_place(value, layer.channels)[:, list(channels)]
            if slot == self.prop.plan.output:
                seen["logits"] = value

        self.prop.plan.run_plain(noisy, visit)
        return seen["logits"], seen["points"]

    def _covariances(self, sigma: float) -> Covariances:
        """Σ for this σ; the latest are kept, up to `CACHE_BYTES`."""
        if sigma not in self._cache:
            self.prop.sigma = sigma
            with torch.no_grad():
                covs = self.prop.covariances()
                self._cache[sigma] = Covariances(covs, self.prop.plan.deviations(covs))
        self._cache.move_to_end(sigma)
        while len(self._cache) > 1 and sum(m.size() for m in self._cache.values()) > CACHE_BYTES:
            self._cache.popitem(last=False)
        return self._cache[sigma]
