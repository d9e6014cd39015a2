"""Consistency regularisation (Jeong and Shin 2020): noisy copies must agree with their mean."""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from covprop.methods.base import Losses, draw, log_mean_softmax, logits_of
from covprop.methods.gaussian import mean_cross_entropy
from covprop.options import NotNegative, Positive, Range, check_fields


@dataclass(frozen=True)
class Consistency:
    """Cross-entropy + λ · mean_i KL(p̄ ‖ p_i) + η · H(p̄), p̄ the mean of the copies' softmax p_i.

    Published settings: two copies, η = 0.5, and λ = 20 at σ = 0.25 or 10 above it (CIFAR-10).

    Args:
        samples: noisy copies of each image.
        weight: λ, on the divergence of the copies from their mean.
        entropy: η, on the entropy of the mean.
        from_epoch: in earlier epochs the loss is the cross-entropy of a single copy, at the cost
            of plain training.

    Example:
        >>> method = Consistency(sigma=0.25, from_epoch=8)
        >>> method.phase(7), method.phase(8)
        (False, True)
    """

    sigma: Positive
    samples: Annotated[int, Range(2)] = 2
    weight: NotNegative = 20.0
    entropy: NotNegative = 0.5
    from_epoch: int = 0

    def __post_init__(self) -> None:
        check_fields("method", self)

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor, *, epoch: int, generator: torch.Generator
    ) -> Losses:
        agree = self.phase(epoch)
        samples = self.samples if agree else 1
        logits = logits_of(model, x, draw(x, samples, self.sigma, generator))
        loss = mean_cross_entropy(logits, y)
        if agree:
            loss = loss + self.disagreement(logits)
        return Losses(loss, logits.detach().mean(1))

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
