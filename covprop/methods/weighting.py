"""Weighting images by their ESTIMATED radius, on top of any method.

No gradient flows through a weight, so the network gains nothing by fooling the estimate.
`WithRadius` adds an estimated radius to any method; `RadiusWeights` turns radii into weights, which
multiply the losses or say how often each image is drawn.
"""

from collections.abc import Hashable
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from covprop import noise
from covprop.errors import InvalidInput, UnsupportedModel, first_line
from covprop.gaussian import Gaussian
from covprop.methods.base import Losses, Method, phase_of
from covprop.options import Range, check_fields
from covprop.propagate.propagator import Propagator
from covprop.propagate.settings import PAPER, Settings
from covprop.radius import estimated_radius

SURE = 1e-4
"""Probabilities are kept this far from 0 and 1: with α = 0.001, 100,000 samples certify at most a
probability of 1 − 7e-5."""


@dataclass(eq=False)
class WithRadius:
    """A method whose `Losses.radius` is always set.

    If the method has no radius, it is the margin of its noisy logits, label against best other
    class, over the deviation by the propagated Σ. That costs one small pass a step, without
    gradient and without images. Batch norms use their running variance.

    With `of="probability"` it is always σ Φ⁻¹(p), p the softmax probability of the label in the
    noisy logits. That needs no Σ, so it costs nothing and works for any model.
    """

    method: Method
    sigma: float
    input_shape: tuple[int, int, int]
    settings: Settings = PAPER
    of: Literal["radius", "probability"] = "radius"
    _prop: Propagator | None = field(default=None, init=False, repr=False)

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor, *, epoch: int, generator: torch.Generator
    ) -> Losses:
        losses = self.method(model, x, y, epoch=epoch, generator=generator)
        if self.of == "probability":
            radius = self._by_probability(losses.logits, y)
        elif losses.radius is not None:
            return losses
        else:
            radius = self._radius(model, losses.logits, y)
        # Not by _replace, from which torch.compile (2.11) makes a tuple of nothing.
        return Losses(losses.per_sample, losses.logits, radius)

    def _by_probability(self, logits: Tensor, y: Tensor) -> Tensor:
        p = logits.detach().float().softmax(1).gather(1, y.unsqueeze(1)).squeeze(1)
        return self.sigma * torch.special.ndtri(p.clamp(SURE, 1 - SURE))

    @torch.no_grad()
    def _radius(self, model: nn.Module, logits: Tensor, y: Tensor) -> Tensor:
        if self._prop is None or self._prop.model is not model:
            self._prop = self._propagator(model)
        out = Gaussian(logits, self._prop.logit_covariance())
        return estimated_radius(out, self.sigma, y, self.settings)

    def _propagator(self, model: nn.Module) -> Propagator:
        try:
            return Propagator(model, self.sigma, self.input_shape, self.settings)
        except UnsupportedModel as error:
            # The remedy here is another weighting, not another model.
            places = [f"{fault.name} ({fault.operation})" for fault in error.faults]
            raise UnsupportedModel(
                'weighting.name = "radius" propagates Σ through the model, which fails at '
                f"{', '.join(places) or first_line(error).rstrip('.')}; set weighting.name = "
                '"probability", which takes any model.',
                error.faults,
            ) from error

    def phase(self, epoch: int) -> Hashable | None:
        """The method's own; Σ is the same work in all epochs."""
        return phase_of(self.method, epoch)

    def state_dict(self) -> dict[str, Any]:
        """The method's own state; Σ follows from the weights."""
        return self.method.state_dict() if hasattr(self.method, "state_dict") else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if hasattr(self.method, "load_state_dict"):
            self.method.load_state_dict(state)


@dataclass(eq=False)
class RadiusWeights:
    """One weight an image, from its estimated radius averaged over epochs.

    r ← momentum · r + (1 − momentum) · radius each time an image is seen, and with m the mean of
    max(r, 0) over all images seen,

        weight = clip(r / m, low, high), or 0 where r < drop_below · m.

    The radius is signed: negative where the label loses, so m is an estimated ACR. Before
    `from_epoch`, and as long as no label wins, every weight is 1. A network that is still mostly
    wrong would drop what it has yet to learn: begin later where images are hard.

    By "sampling" the weights say how often an image is drawn, see `order`. The steps of an epoch
    stay as many as they were, and those that weak and dropped images no longer take go to the
    others. A dropped image is still drawn with weight `low`, to be looked at: its radius is taken
    in, its loss counts 0, so that it can come back. With `low = 0` it is gone for good.

    Args:
        count: images in the training set.
        by: what a weight acts on, the image's loss or the number of times that it is drawn.
        momentum: share of the past in r.
        low, high: bounds of a weight.
        drop_below: images whose label loses by more than this (a negative share of m) get 0.
        from_epoch: first epoch, counted from 0, in which the weights act.

    Example:
        >>> weights = RadiusWeights(3, from_epoch=0)
        >>> weights.update(torch.tensor([0, 1, 2]), torch.tensor([2.0, 0.4, -0.9]))
        >>> weights.of(torch.tensor([0, 1, 2]), epoch=0)
        tensor([2.0000, 0.5000, 0.0000])
    """

    count: Annotated[int, Range(1)]
    _: KW_ONLY
    by: Literal["loss", "sampling"] = "loss"
    momentum: Annotated[float, Range(0, 0.999)] = 0.6
    low: Annotated[float, Range(0, 1)] = 0.1
    high: Annotated[float, Range(1)] = 2.0
    drop_below: Annotated[float, Range(high=0)] = -0.3
    from_epoch: Annotated[int, Range(0)] = 2
    device: torch.device | str = "cpu"

    def __post_init__(self) -> None:
        check_fields("weighting", self)
        self.radius = torch.full((self.count,), torch.nan, device=self.device)  # nan: not seen yet
        self.start = self.radius.cpu().clone()  # at the epoch's start

    def start_epoch(self) -> None:
        """Keep the radii, which with seed and epoch determine the epoch's order."""
        if self.by == "sampling":
            self.start = self.radius.cpu().clone()

    def early(self, epoch: int) -> list[str]:
        """A sentence where the weights begin, in this epoch, with a network that is mostly wrong.

        Example:
            >>> RadiusWeights(3, from_epoch=1).early(epoch=0)
            []
        """
        right = float((self.radius > 0).float().mean()) if epoch == self.from_epoch else 1.0
        if right >= 0.5:
            return []
        return [
            f"weights begin with epoch {epoch + 1}, while {1 - right:.0%} of the images have no "
            "positive estimated radius: what the network has yet to learn it may never learn now; "
            "begin later (weighting.from_epoch)."
        ]

    def order(self, epoch: int, seed: int) -> Tensor | None:
        """The images of the epoch in their order, [count]; None while every one comes once."""
        if self.by == "loss" or not self.phase(epoch):
            return None
        generator = torch.Generator().manual_seed(noise.seed_of(seed, "order", epoch))
        # On the CPU, so that the order does not depend on how a GPU rounds.
        return resample(self._weights(self.start, self.start).clamp(min=self.low), generator)

    def update(self, index: Tensor, radius: Tensor) -> None:
        """Take in the radii of a batch; `index` are the images' places in the training set.

        Radii that are not finite (a covariance of 0 early in training) are left out.
        """
        self.radius = self.radius.to(index.device)
        new = radius.detach().to(self.radius.dtype)
        old = self.radius[index]
        mixed = self.momentum * old + (1 - self.momentum) * new
        mixed = torch.where(old.isnan(), new, mixed)
        mixed = torch.where(new.isfinite(), mixed, -torch.inf)
        # An image that is twice in a batch keeps its larger value, so the result is deterministic.
        found = self.radius.scatter_reduce(0, index, mixed, "amax", include_self=False)
        self.radius.copy_(torch.where(found == -torch.inf, self.radius, found))

    def of(self, index: Tensor, epoch: int) -> Tensor:
        """What to multiply the losses of a batch by, [b]: by "sampling" 0 where dropped, else 1."""
        r = self.radius[index.to(self.radius.device)]
        if not self.phase(epoch):
            return torch.ones_like(r)
        weights = self._weights(r, self.radius)
        return weights if self.by == "loss" else (weights > 0).to(r.dtype)

    def _weights(self, r: Tensor, everyone: Tensor) -> Tensor:
        # NaN before anything was seen. Negative radii count as 0, or the mean could be negative.
        mean = everyone.clamp(min=0).nanmean()
        weight = (r / mean).clamp(self.low, self.high)
        weight = torch.where(r < self.drop_below * mean, 0.0, weight)
        return torch.where((mean > 0) & ~r.isnan(), weight, 1.0)

    def phase(self, epoch: int) -> bool:
        """Whether the weights act."""
        return epoch >= self.from_epoch

    def state_dict(self) -> dict[str, Any]:
        start = {"start": self.start} if self.by == "sampling" else {}
        return {"radius": self.radius, **start}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        radius = state["radius"]
        if radius.shape != self.radius.shape:
            raise InvalidInput(
                f"The checkpoint holds radii of {len(radius)} training images, but the data has "
                f"{len(self.radius)}; resume on the data the run began with."
            )
        self.radius = radius.to(self.radius.device)
        self.start = state.get("start", radius).cpu()


def resample(weights: Tensor, generator: torch.Generator) -> Tensor:
    """The numbers of n images drawn from n, each image in proportion to its weight.

    Systematic resampling: with p the weights [n], scaled to mean 1, image i comes ⌊pᵢ⌋ or ⌈pᵢ⌉
    times, on average pᵢ times. The order is random, with the copies of an image evenly apart.

    Example:
        >>> resample(torch.tensor([3.0, 0.0, 1.0, 0.0]), torch.Generator().manual_seed(0)).tolist()
        [0, 2, 0, 0]
    """
    images = torch.randperm(len(weights), generator=generator)
    offset = torch.rand((), generator=generator, dtype=torch.float64)
    place = torch.rand(len(weights), generator=generator, dtype=torch.float64)
    share = weights.double()[images]
    ends = (share * (len(share) / share.sum())).cumsum(0).clamp(max=len(share))
    ends[-1] = len(share)  # exactly, in spite of rounding
    ends = (ends - offset).ceil().long()
    counts = ends.diff(prepend=ends.new_zeros(1))
    copies = images.repeat_interleave(counts)
    number = torch.arange(len(copies)) - (ends - counts).repeat_interleave(counts)
    where = (number + place[copies]) / counts.repeat_interleave(counts)
    return copies[where.argsort(stable=True)]
