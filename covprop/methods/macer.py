"""MACER (Zhai et al. 2020): maximise a sampled, soft radius of the correctly classified."""

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covprop.methods.base import Losses, draw, logits_of
from covprop.options import NotNegative, Positive, Range, check_fields
from covprop.pixels import Sigma


@dataclass(frozen=True)
class Macer:
    """−log p̄[y] + λ · σ/2 · (γ − ξ) with ξ = Φ⁻¹(p̂₁) − Φ⁻¹(p̂₂).

    p̄ is the softmax averaged over noisy copies, p̂ the same of β times the logits, p̂₁ ≥ p̂₂ its
    two largest values. The second term is there only where p̂ is right and 0 ≤ ξ ≤ γ is finite.
    The mean over the batch is the published loss, which divides both sums by the batch size.

    Args:
        samples: noisy copies of each image.
        weight: λ.
        gamma: γ, where the hinge ends.
        beta: β, the inverse temperature of the soft radius.
        from_epoch: the radius term is left out in earlier epochs.
    """

    sigma: Sigma
    samples: Annotated[int, Range(1)] = 16
    weight: NotNegative = 12.0
    gamma: Positive = 8.0
    beta: Positive = 16.0
    from_epoch: int = 0

    def __post_init__(self) -> None:
        check_fields("method", self)

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor, *, epoch: int, generator: torch.Generator
    ) -> Losses:
        logits = logits_of(model, x, draw(x, self.samples, self.sigma, generator))
        mean = logits.softmax(-1).mean(1)
        loss = F.nll_loss(torch.log(mean + 1e-10), y, reduction="none")
        if self.phase(epoch):
            loss = loss + self.weight * self.radius_loss(logits, y)
        return Losses(loss, logits.detach().mean(1))

    def phase(self, epoch: int) -> bool:
        """Whether the radius counts."""
        return self.weight > 0 and epoch >= self.from_epoch

    def radius_loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """σ/2 · (γ − ξ) where it counts, 0 elsewhere: [b, samples, k], [b] -> [b]."""
        p, order = (self.beta * logits).softmax(-1).mean(1).topk(2)
        with torch.no_grad():
            width = torch.special.ndtri(p[:, 0]) - torch.special.ndtri(p[:, 1])
            counts = (order[:, 0] == y) & width.isfinite() & (width.abs() <= self.gamma)
        # The slope of Φ⁻¹ at 0 and 1 is infinite, and 0 · ∞ would poison the gradient of all.
        safe = torch.where(counts.unsqueeze(1), p, 0.5)
        width = torch.special.ndtri(safe[:, 0]) - torch.special.ndtri(safe[:, 1])
        return torch.where(counts, self.sigma / 2 * (self.gamma - width), 0.0)
