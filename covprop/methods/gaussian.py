"""Training on noisy images (Cohen et al. 2019): the plain method every other is compared with."""

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covprop.methods.base import Losses, draw, logits_of
from covprop.options import Range, check_fields
from covprop.pixels import Sigma


@dataclass(frozen=True)
class Gaussian:
    """Cross-entropy on x + σε, averaged over `samples` noisy copies of each image.

    Example:
        >>> method = Gaussian(sigma=0.25)
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        >>> x, y = torch.rand(4, 1, 8, 8), torch.arange(4)
        >>> method(model, x, y, epoch=0, generator=torch.Generator()).per_sample.shape
        torch.Size([4])
    """

    sigma: Sigma
    samples: Annotated[int, Range(1)] = 1

    def __post_init__(self) -> None:
        check_fields("method", self)

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor, *, epoch: int, generator: torch.Generator
    ) -> Losses:
        logits = logits_of(model, x, draw(x, self.samples, self.sigma, generator))
        return Losses(mean_cross_entropy(logits, y), logits.detach().mean(1))

    def phase(self, epoch: int) -> int:
        """All epochs are alike."""
        return 0


def mean_cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy averaged over an image's copies: [b, samples, k], [b] -> [b]."""
    samples = logits.shape[1]
    loss = F.cross_entropy(logits.flatten(0, 1), y.repeat_interleave(samples), reduction="none")
    return loss.unflatten(0, (-1, samples)).mean(1)
