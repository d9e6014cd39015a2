"""SmoothAdv (Salman et al. 2019): adversarial training of the smoothed classifier by PGD."""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from covprop.methods.base import Losses, draw, log_mean_softmax, logits_of, scaled_to
from covprop.methods.gaussian import mean_cross_entropy
from covprop.mode import switched
from covprop.options import Positive, Range, check_fields
from covprop.pixels import Sigma


@dataclass(frozen=True)
class SmoothAdv:
    """Cross-entropy on x + δ + σε_i, where δ maximises −log mean_i softmax(x + δ + σε_i)[y].

    δ is found by `steps` steps of length 2ε/steps along the normalised gradient, kept within
    ‖δ‖ ≤ ε and x + δ within [0, 1], with the model in eval mode. The same noise ε_i serves the
    attack and the training.

    Args:
        samples: noisy copies of each image.
        epsilon: largest ℓ2 norm of δ, on the pixel scale.
        steps: gradient steps of the attack.
        warmup: over that many epochs the allowed norm rises linearly to epsilon.
    """

    sigma: Sigma
    samples: Annotated[int, Range(1)] = 2
    epsilon: Positive = 1.0
    steps: Annotated[int, Range(1)] = 10
    warmup: Annotated[int, Range(0)] = 10

    def __post_init__(self) -> None:
        check_fields("method", self)

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor, *, epoch: int, generator: torch.Generator
    ) -> Losses:
        noise = draw(x, self.samples, self.sigma, generator)
        with switched(model, training=False):
            attacked = self.attack(model, x, y, noise, self.epsilon_at(epoch))
        logits = logits_of(model, attacked, noise)
        return Losses(mean_cross_entropy(logits, y), logits.detach().mean(1))

    def epsilon_at(self, epoch: int) -> float:
        """The norm allowed in an epoch, counted from 0."""
        return self.epsilon * min(1.0, (epoch + 1) / max(self.warmup, 1))

    def phase(self, epoch: int) -> float:
        """The allowed norm is all that changes."""
        return self.epsilon_at(epoch)

    @torch.enable_grad()
    def attack(self, model: nn.Module, x: Tensor, y: Tensor, noise: Tensor, size: float) -> Tensor:
        """x + δ after all steps, without gradient; only δ is differentiated, never the weights."""
        delta = torch.zeros_like(x)
        for _ in range(self.steps):
            delta.requires_grad_(True)
            log_p = log_mean_softmax(logits_of(model, x + delta, noise))
            loss = -log_p.gather(1, y.unsqueeze(1)).sum()
            (slope,) = torch.autograd.grad(loss, delta)
            with torch.no_grad():
                moved = delta + scaled_to(slope, 2 * size / self.steps)
                moved = (x + moved).clamp(0, 1) - x
                delta = scaled_to(moved, moved.flatten(1).norm(dim=1).clamp_max(size))
        return (x + delta).detach()
