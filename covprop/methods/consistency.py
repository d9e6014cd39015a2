"""Consistency regularisation (Jeong and Shin 2020): noisy copies must agree with their mean.

On top of it, `reach`: images are trained where their estimated radius ends.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from covprop.methods.base import Losses, draw, log_mean_softmax, logits_of, scaled_to
from covprop.methods.gaussian import mean_cross_entropy
from covprop.mode import switched
from covprop.options import NotNegative, Range, check_fields
from covprop.pixels import Sigma
from covprop.radius import gap_between, largest_other, ratio


@dataclass(frozen=True)
class Consistency:
    """Cross-entropy + λ · mean_i KL(p̄ ‖ p_i) + η · H(p̄), p̄ the mean of the copies' softmax p_i.

    Published settings: two copies, η = 0.5, and λ = 20 at σ = 0.25 or 10 above it (CIFAR-10).

    With `reach`, an image is first moved against its label by r = min(margin / ‖∇ margin‖, reach):
    along the gradient of its margin at the first copy, as far as its linearised radius goes. One
    whose margin is negative stays. All copies are of the moved image.

    Args:
        samples: noisy copies of each image.
        weight: λ, on the divergence of the copies from their mean.
        entropy: η, on the entropy of the mean.
        from_epoch: in earlier epochs the loss is the cross-entropy of a single copy, at the cost
            of plain training.
        reach: the largest ℓ2 norm by which an image is moved, on the pixel scale; 0 moves none. It
            costs a forward pass of one copy and its gradient to the input, with the model in
            eval mode.

    Example:
        >>> method = Consistency(sigma=0.25, from_epoch=8)
        >>> method.phase(7), method.phase(8)
        (False, True)
    """

    sigma: Sigma
    samples: Annotated[int, Range(2)] = 2
    weight: NotNegative = 20.0
    entropy: NotNegative = 0.5
    from_epoch: int = 0
    reach: NotNegative = 0.0

    def __post_init__(self) -> None:
        check_fields("method", self)

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor, *, epoch: int, generator: torch.Generator
    ) -> Losses:
        agree = self.phase(epoch)
        noise = draw(x, self.samples if agree else 1, self.sigma, generator)
        radius = None
        if agree and self.reach:
            x, radius = self.moved(model, x, y, noise[:, :1])
        logits = logits_of(model, x, noise)
        loss = mean_cross_entropy(logits, y)
        if agree:
            loss = loss + self.disagreement(logits)
        return Losses(loss, logits.detach().mean(1), radius)

    def phase(self, epoch: int) -> bool:
        """Whether copies must agree."""
        return epoch >= self.from_epoch

    def disagreement(self, logits: Tensor) -> Tensor:
        """λ · KL + η · entropy of each image: [b, samples, k] -> [b]."""
        log_p = logits.log_softmax(-1)
        log_mean = log_mean_softmax(logits)
        mean = log_mean.exp()
        divergence = (mean * (log_mean - log_p.mean(1))).sum(-1)
        entropy = -(mean * log_mean).sum(-1)
        return self.weight * divergence + self.entropy * entropy

    def moved(self, model: nn.Module, x: Tensor, y: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Images moved towards the boundary, and their linearised radius of the label: [b]."""
        with switched(model, training=False), torch.enable_grad():
            at = x.detach().clone().requires_grad_(True)
            logits = logits_of(model, at, noise).squeeze(1)
            gap = gap_between(logits, y, largest_other(logits, y))
            (slope,) = torch.autograd.grad(gap.sum(), at)
        radius = ratio(gap.detach(), slope.flatten(1).square().sum(1))
        return x - scaled_to(slope, radius.clamp(0, self.reach)), radius
