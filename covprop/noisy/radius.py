"""This paper's way: train for a large radius, then leave out images by their ESTIMATED radius."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from covprop.data import Batch
from covprop.errors import InvalidInput
from covprop.gaussian import Gaussian
from covprop.methods.base import draw
from covprop.methods.radius import PRESETS
from covprop.noisy.base import NoisyLosses, NoisyMethod, Task, cross_entropy
from covprop.noisy.smodel import SModel
from covprop.options import Fraction, NotNegative, Range
from covprop.propagate.propagator import Propagator
from covprop.radius import RadiusLoss, estimated_radius


class Radius(NoisyMethod):
    """Cross-entropy + λ · max(0, Γ − estimated radius), the cross-entropy not for all images.

    From `from_epoch` on the cross-entropy of a share `drop` of the images is left out: those at one
    end of the ranking by the radius each had when it was last seen. The paper's text says the
    largest; the smallest is the reading under which doubtful images are left out.

    With `layer`, no image is left out: after so many plain epochs all images are learned through
    the S-model's noise layer, and from `from_epoch` on those not dropped by their own label again.

    Args:
        end: which end is left out.
        of: the radius of the prediction (the paper's, never negative), or that of the given
            label against the best other class, negative where the label loses.
        drop: share of the training images.
        per_class: take that share of the images of every given label, not of all. A network knows
            some classes sooner than others; over all images these would lose their right labels.
        refresh: epochs between two choices; 0 chooses once.
        layer: plain epochs before the noise layer begins; 0 has none.
        weight: λ; 0 trains plainly on noisy images and only ranks by the radius, for which Σ is
            computed once an epoch.
        offset: Γ; the preset's when not given.
        preset: "paper" or "reference", see `covprop.Settings`.
        detach_covariance: whether no gradient flows through Σ; the preset's when not given.
    """

    radius: Tensor
    keep: Tensor
    group: Tensor
    cov: Tensor
    chosen: Tensor | None

    def __init__(
        self,
        task: Task,
        end: Literal["largest", "smallest"] = "largest",
        of: Literal["prediction", "label"] = "prediction",
        drop: Fraction = 0.1,
        per_class: bool = False,
        from_epoch: Annotated[int, Range(0)] = 60,
        refresh: Annotated[int, Range(0)] = 1,
        layer: Annotated[int, Range(0)] = 0,
        weight: NotNegative = 4.0,
        offset: NotNegative | None = None,
        preset: Literal["paper", "reference"] = "paper",
        detach_covariance: bool | None = None,
    ) -> None:
        super().__init__()
        if from_epoch < layer:
            raise InvalidInput(
                f"method.from_epoch = {from_epoch} comes before the noise layer, which begins "
                f"after method.layer = {layer} epochs; make it at least as large."
            )
        self.task, self.end, self.of = task, end, of
        self.drop, self.from_epoch, self.refresh = drop, from_epoch, refresh
        self.per_class = per_class
        settings = PRESETS[preset]
        if detach_covariance is not None:
            settings = settings.but(detach_covariance=detach_covariance)
        self.loss = RadiusLoss(task.sigma, weight, offset, settings, reduction="none")
        self.register_buffer("radius", torch.full((task.images,), torch.nan))
        self.register_buffer("keep", torch.ones(task.images, dtype=torch.bool))
        # The given labels, learned as they are seen; one group for all images if not per class.
        self.register_buffer("group", torch.zeros(task.images, dtype=torch.int64))
        self.register_buffer("cov", torch.full((task.num_classes,) * 2, torch.nan))
        self.layer = SModel(task, layer) if layer else None
        # A tensor, since a recorded step cannot ask for the epoch.
        self.register_buffer("chosen", torch.zeros((), dtype=torch.bool) if layer else None)
        # In a tuple, or its model would be registered a second time here.
        self._held: tuple[Propagator, ...] = ()

    def start_epoch(self, model: nn.Module, epoch: int) -> None:
        if not self.loss.weight:  # a run that goes on within an epoch finds Σ in the checkpoint
            with torch.no_grad():
                self.cov.copy_(self._propagated(model))
        if self.layer is not None:
            self.layer.start_epoch(model, epoch)
        late = epoch - self.from_epoch
        if late == 0 or (late > 0 and self.refresh and late % self.refresh == 0):
            left_out = torch.zeros_like(self.keep)
            for group in range(self.task.num_classes if self.per_class else 1):
                values = self.radius.where(self.group == group, torch.nan)
                left_out |= extreme(values, self.drop, self.end)
            self.keep.copy_(~left_out)
            if self.chosen is not None:
                self.chosen.fill_(True)

    def phase(self, epoch: int) -> Hashable:
        return 0 if self.layer is None else self.layer.phase(epoch)

    def forward(
        self, model: nn.Module, batch: Batch, epoch: int, generator: torch.Generator
    ) -> NoisyLosses:
        noise = draw(batch.x, 1, self.task.sigma, generator).squeeze(1)
        logits = model(batch.x + noise).float()
        out = Gaussian(logits, self._propagated(model) if self.loss.weight else self.cov)
        kept = self.keep[batch.index]
        losses = torch.where(kept, cross_entropy(logits, batch.y), 0.0)
        if self.layer is not None and self.chosen is not None:
            through = self.layer.losses(logits, batch.y, epoch)
            losses = torch.where(kept & self.chosen, losses, through)
        if self.loss.weight:
            losses = losses + self.loss.weight * self.loss.hinge(out, batch.y)
        with torch.no_grad():
            labels = batch.y if self.of == "label" else None
            radius = estimated_radius(out, self.task.sigma, labels, self.loss.settings).float()
            self.radius.index_copy_(0, batch.index, radius)
            if self.per_class:
                self.group.index_copy_(0, batch.index, batch.y)
        return NoisyLosses(losses, logits.detach(), kept, radius)

    def _propagated(self, model: nn.Module) -> Tensor:
        if not self._held:
            task = self.task
            self._held = (Propagator(model, task.sigma, task.input_shape, self.loss.settings),)
        return self._held[0].logit_covariance()


def extreme(values: Tensor, share: float, end: str) -> Tensor:
    """The `share` of known values at one end, a mask; nan is unknown and never among them.

    >>> extreme(torch.tensor([0.1, 0.9, 0.5, torch.nan]), 0.34, "largest")
    tensor([False,  True, False, False])
    """
    known = ~values.isnan()
    count = int(share * int(known.sum()) + 1e-6)
    signed = values if end == "largest" else -values
    places = torch.where(known, signed, -torch.inf).topk(count).indices
    return torch.zeros_like(known).index_fill_(0, places, True) & known
