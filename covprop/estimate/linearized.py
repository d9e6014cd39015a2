"""The margin pulled back to the input: Var ≈ σ²‖∇ₓ(u_top − u_runner_up)‖²."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from covprop.estimate.result import Margin, logits_of, margin_of
from covprop.radius import top_two


def linearized(
    model: nn.Module, x: Tensor, sigma: float, samples: int = 0, create_graph: bool = False
) -> Margin:
    """Exact when the network is linear within the noise; an own variance for every image.

    Args:
        samples: 0 takes the gradient at the clean image. k > 0 takes it at k noisy points and
            averages margin and squared norm: better at large σ, where the clean gradient says
            too little.
        create_graph: keep the graph, to train on the radius (the gradient of a gradient).

    In training mode a batch norm couples the images of a batch; the gradient of one image's
    margin then leaves out what it does to the others.
    """
    repeats = max(samples, 1)
    with torch.enable_grad():
        points = x.detach().repeat_interleave(repeats, dim=0)
        if samples:
            points = points + sigma * torch.randn_like(points)
        points.requires_grad_(True)
        logits = logits_of(model, points)
        average = logits.unflatten(0, (len(x), repeats)).mean(1)
        top, runner_up = top_two(average)
        pair = torch.stack([top, runner_up], 1).repeat_interleave(repeats, dim=0)
        values = logits.gather(1, pair)
        gap = values[:, 0] - values[:, 1]
        (gradient,) = torch.autograd.grad(gap.sum(), points, create_graph=create_graph)
        var = sigma**2 * gradient.flatten(1).square().sum(1)
        mean = gap.unflatten(0, (len(x), repeats)).mean(1)
        var = var.unflatten(0, (len(x), repeats)).mean(1)
        result = margin_of(mean, var, sigma, top, runner_up)
    return result if create_graph else Margin(*(value.detach() for value in result))
