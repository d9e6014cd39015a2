"""Monte Carlo: the margin's mean and variance from noisy samples."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from covprop.errors import InvalidInput
from covprop.estimate.result import Margin, checked_logits, margin_of
from covprop.layers import widened
from covprop.options import is_whole
from covprop.propagate.inputs import check_samples
from covprop.radius import gap_between, top_two


@torch.no_grad()
def sampled(
    model: nn.Module,
    x: Tensor,
    sigma: float,
    samples: int = 1000,
    chunk: int = 256,
    generator: torch.Generator | None = None,
) -> Margin:
    """Draw `samples` noisy copies of each image, at most `chunk` images at a time in memory.

    The top two classes are those of the mean logits. Memory holds the logits of all samples.
    """
    check_samples(samples)
    if not is_whole(chunk) or chunk < 1:
        raise InvalidInput(
            f"chunk is {chunk!r}: a pass takes a whole number of samples, 1 or more."
        )
    if generator is not None and not isinstance(generator, torch.Generator):
        raise InvalidInput(f"generator is {generator!r}: give a torch.Generator.")
    draws = []
    for image in x:
        rows = []
        for start in range(0, samples, chunk):
            copies = image.expand(min(chunk, samples - start), *image.shape)
            noise = torch.randn(copies.shape, device=x.device, dtype=x.dtype, generator=generator)
            rows.append(checked_logits(model, copies + sigma * noise))
        draws.append(torch.cat(rows))
    logits = widened(torch.stack(draws))  # [b, samples, classes]
    top, runner_up = top_two(logits.mean(1))
    pair = (classes.repeat_interleave(samples) for classes in (top, runner_up))
    gap = gap_between(logits.flatten(0, 1), *pair).unflatten(0, (-1, samples))
    return margin_of(gap.mean(1), gap.var(1), sigma, top, runner_up)
