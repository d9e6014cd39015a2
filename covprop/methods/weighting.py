"""Weighting images by their ESTIMATED radius, on top of any method.

No gradient flows through a weight, so the network gains nothing by fooling the estimate.
`WithRadius` gives any method an estimated radius; `RadiusWeights` turns radii into weights.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from covprop.errors import InvalidInput
from covprop.gaussian import Gaussian
from covprop.methods.base import Losses, Method, phase_of, require
from covprop.propagate.propagator import Propagator
from covprop.propagate.settings import PAPER, Settings
from covprop.radius import estimated_radius


@dataclass(eq=False)
class WithRadius:
    """A method whose `Losses.radius` is always there.

    Where the method has no radius of its own, it is the margin of its noisy logits, label against
    best other class, over the deviation that the propagated Σ gives it. Σ needs no image: it costs
    one small pass a step, without gradient. Batch norms count with their running variance.
    """

    method: Method
    sigma: float
    input_shape: tuple[int, int, int]
    settings: Settings = PAPER
    _prop: Propagator | None = field(default=None, init=False, repr=False)

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor, *, epoch: int, generator: torch.Generator
    ) -> Losses:
        losses = self.method(model, x, y, epoch=epoch, generator=generator)
        if losses.radius is not None:
            return losses
        return losses._replace(radius=self._radius(model, losses.logits, y))

    @torch.no_grad()
    def _radius(self, model: nn.Module, logits: Tensor, y: Tensor) -> Tensor:
        if self._prop is None or self._prop.model is not model:
            self._prop = Propagator(model, self.sigma, self.input_shape, self.settings)
        cov = self._prop.covariances()[self._prop.plan.output]
        assert cov is not None
        return estimated_radius(Gaussian(logits, cov), self.sigma, y, self.settings)

    def phase(self, epoch: int) -> Hashable | None:
        """The method's own; Σ is the same work in all epochs."""
        return phase_of(self.method, epoch)

    def state_dict(self) -> dict[str, Any]:
        """The method's own state; Σ follows from the weights."""
        return self.method.state_dict() if hasattr(self.method, "state_dict") else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if hasattr(self.method, "load_state_dict"):
            self.method.load_state_dict(state)


class RadiusWeights:
    """One weight an image, from its estimated radius averaged over epochs.

    r ← momentum · r + (1 − momentum) · radius each time an image is seen, and with m the mean of r
    over all images seen,

        weight = clip(r / m, low, high), or 0 where r < drop_below · m.

    The radius is signed: negative where the label loses. Before `from_epoch`, and as long as m is
    not positive, every weight is 1: a network that is mostly wrong must not drop what it has yet
    to learn.

    Args:
        count: images in the training set.
        momentum: share of the past in r.
        low, high: bounds of a weight.
        drop_below: images whose label loses by more than this (a negative share of m) get 0.
        from_epoch: first epoch, counted from 0, in which the weights act.

    Example:
        >>> weights = RadiusWeights(3, from_epoch=0)
        >>> weights.update(torch.tensor([0, 1, 2]), torch.tensor([2.0, 0.4, -0.9]), epoch=0)
        >>> weights.of(torch.tensor([0, 1, 2]), epoch=0)
        tensor([2.0000, 0.8000, 0.0000])
    """

    def __init__(
        self,
        count: int,
        *,
        momentum: float = 0.6,
        low: float = 0.1,
        high: float = 2.0,
        drop_below: float = -0.3,
        from_epoch: int = 2,
        device: torch.device | str = "cpu",
    ) -> None:
        require(0 <= momentum < 1, f"weighting.momentum must lie in [0, 1), not {momentum}.")
        require(0 <= low <= 1 <= high, f"weighting.low, high must enclose 1, not {low}, {high}.")
        require(drop_below <= 0, f"weighting.drop_below must be at most 0, not {drop_below}.")
        self.momentum, self.low, self.high = momentum, low, high
        self.drop_below, self.from_epoch = drop_below, from_epoch
        self.radius = torch.full((count,), torch.nan, device=device)  # nan: not seen yet

    def update(self, index: Tensor, radius: Tensor, epoch: int) -> None:
        """Take in the radii of a batch; `index` are the images' places in the training set.

        A radius that is not finite (a covariance of 0 early in training) says nothing and is
        left out.
        """
        self.radius = self.radius.to(index.device)
        new = radius.detach().to(self.radius.dtype)
        old = self.radius[index]
        mixed = self.momentum * old + (1 - self.momentum) * new
        mixed = torch.where(old.isnan(), new, mixed)
        self.radius[index] = torch.where(new.isfinite(), mixed, old)

    def of(self, index: Tensor, epoch: int) -> Tensor:
        """The weights of a batch, [b]."""
        r = self.radius[index.to(self.radius.device)]
        if not self.phase(epoch):
            return torch.ones_like(r)
        mean = self.radius.nanmean()  # nan while nothing was seen
        weight = (r / mean).clamp(self.low, self.high)
        weight = torch.where(r < self.drop_below * mean, 0.0, weight)
        return torch.where((mean > 0) & ~r.isnan(), weight, 1.0)

    def phase(self, epoch: int) -> bool:
        """Whether the weights act."""
        return epoch >= self.from_epoch

    def state_dict(self) -> dict[str, Any]:
        return {"radius": self.radius}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        radius = state["radius"]
        if radius.shape != self.radius.shape:
            raise InvalidInput(
                f"The checkpoint holds radii of {len(radius)} training images, but the data has "
                f"{len(self.radius)}; resume on the data the run began with."
            )
        self.radius = radius.to(self.radius.device)
