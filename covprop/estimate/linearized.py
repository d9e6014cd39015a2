"""The margin pulled back to the input: Var ≈ σ²‖∇ₓ(u_top − u_runner_up)‖².

To train on ‖g‖², g = ∇ₓ margin, one needs its gradient in the weights, which a backward pass
through the backward pass gives, slowly. Forward mode gives the same at the price of ordinary
passes: with u = g held constant, gᵀu is the margin's derivative along u, computed by one forward
pass that carries u along, and d‖g‖² = 2·d(gᵀu). Where a batch norm in training couples the images
of a batch, gᵀu of one image would feel the directions of all the others, so there the backward
pass is differentiated.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn

from covprop.estimate.result import Margin, logits_of, margin_of
from covprop.radius import top_two


class Linearization(NamedTuple):
    """The network at some points: logits [p, k]; the others are [p]."""

    logits: Tensor
    gap: Tensor  # u_top − u_runner_up
    var: Tensor  # σ²‖∇ gap‖²
    top: Tensor
    runner_up: Tensor


def linearize(
    model: nn.Module, points: Tensor, sigma: float, copies: int = 1, create_graph: bool = False
) -> Linearization:
    """Linearise the top-two margin at every point.

    Args:
        copies: how many points in a row belong to one image; they share its top two classes.
        create_graph: keep the graph of logits, gap and variance, to train on them.
    """
    points = points.detach()
    twice = create_graph and couples_images(model)
    with torch.enable_grad():
        at = points.clone().requires_grad_(True)
        logits = logits_of(model, at)
        top, runner_up = top_two(logits.unflatten(0, (-1, copies)).mean(1))
        pair = torch.stack([top, runner_up], 1).repeat_interleave(copies, dim=0)
        gap = difference(logits, pair)
        (slope,) = torch.autograd.grad(gap.sum(), at, create_graph=twice)
    square = slope.to(gap.dtype).flatten(1).square().sum(1)
    if create_graph and not twice:
        with torch.enable_grad(), forward_ad.dual_level():
            out = logits_of(model, forward_ad.make_dual(points, slope))
            logits, along = forward_ad.unpack_dual(out)
            gap, along = difference(logits, pair), difference(along, pair)
            square = square + 2 * (along - along.detach())  # the value of ‖g‖², the gradient too
    elif not create_graph:
        logits, gap = logits.detach(), gap.detach()
    return Linearization(logits, gap, sigma**2 * square, pair[:, 0], pair[:, 1])


def couples_images(model: nn.Module) -> bool:
    """Whether the logits of an image depend on the others in its batch."""
    norms = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
    return any(isinstance(m, norms) and m.training for m in model.modules())


def difference(logits: Tensor, pair: Tensor) -> Tensor:
    """u_a − u_b for the pair of classes of each row, in float32 or wider."""
    values = logits.gather(1, pair)
    values = values if values.dtype == torch.float64 else values.float()
    return values[:, 0] - values[:, 1]


def linearized(
    model: nn.Module, x: Tensor, sigma: float, samples: int = 0, create_graph: bool = False
) -> Margin:
    """Exact when the network is linear within the noise; an own variance for every image.

    Args:
        samples: 0 takes the gradient at the clean image. k > 0 takes it at k noisy points and
            averages margin and squared norm: better at large σ, where the clean gradient says
            too little.
        create_graph: keep the graph, to train on the radius.

    In training mode a batch norm couples the images of a batch; the gradient of one image's
    margin then leaves out what it does to the others.
    """
    copies = max(samples, 1)
    points = x.repeat_interleave(copies, dim=0)
    if samples:
        points = points + sigma * torch.randn_like(points)
    found = linearize(model, points, sigma, copies, create_graph)
    mean, var = (value.unflatten(0, (-1, copies)).mean(1) for value in (found.gap, found.var))
    return margin_of(mean, var, sigma, found.top[::copies], found.runner_up[::copies])
