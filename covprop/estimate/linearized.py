"""The margin pulled back to the input: Var ≈ σ²‖∇ₓ(u_top − u_runner_up)‖²."""

from __future__ import annotations

from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from covprop.errors import InvalidInput, first_line, machine_failed
from covprop.estimate.pullback import Pullback
from covprop.estimate.result import Margin, checked_logits, margin_of
from covprop.layers import widened
from covprop.propagate.inputs import check_samples
from covprop.radius import TopTwo, gap_between, largest_other, top_two


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
    """Linearise the margin of an image's top class over the largest other one at every point.

    Args:
        copies: how many points in a row belong to one image; they share its top class, and each
            has the runner-up that is the largest there: the class has to win against all.
        create_graph: keep the graph of logits, gap and variance, to train on them.
    """
    # Inference mode has no gradients. It is left only if it is on: a compiled step stays unchanged.
    leave = torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()
    with leave, torch.enable_grad():
        at = points.detach().clone().requires_grad_(True)
        # Of torch's attention kernels only the plain one has a second derivative.
        attention = sdpa_kernel(SDPBackend.MATH) if create_graph else nullcontext()
        with Pullback(model.training) as pullback, attention:
            logits = checked_logits(model, at.clone())  # which the model may change in place
        top = top_two_of_mean(logits, copies).top.repeat_interleave(copies)
        runner_up = largest_other(logits, top)
        gap = gap_between(widened(logits), top, runner_up)
        slope = slope_of(model, gap, at, pullback, create_graph)
        var = sigma**2 * slope.to(gap.dtype).flatten(1).square().sum(1)
    if not create_graph:
        logits, gap = logits.detach(), gap.detach()
    return Linearization(logits, gap, var, top, runner_up)


def slope_of(
    model: nn.Module, gap: Tensor, at: Tensor, pullback: Pullback, create_graph: bool
) -> Tensor:
    """∇ gap, or InvalidInput if the network is not differentiable."""
    try:
        return pullback(gap, at, create_graph)
    except RuntimeError as error:
        if machine_failed(error):
            raise
        raise InvalidInput(
            f"the logits of {type(model).__name__} cannot be differentiated by the image, which "
            f"linearized does ({first_line(error)}); freeze layers by requires_grad_(False) rather "
            "than by no_grad or detach in forward, or use the estimator sampled."
        ) from error


def top_two_of_mean(logits: Tensor, copies: int) -> TopTwo:
    """The two classes of largest mean over the copies of each image."""
    return top_two(logits.unflatten(0, (-1, copies)).mean(1))


def linearized(
    model: nn.Module, x: Tensor, sigma: float, samples: int = 0, create_graph: bool = False
) -> Margin:
    """The margin linearised at x: a variance for each image, exact if the network is linear there.

    Args:
        samples: 0 takes the gradient at the clean image. k > 0 takes it at k noisy points and
            averages squared norm and margin (over the largest other class at each point), which is
            better at large σ. Points come in pairs x ± ε, whose mean cancels what is linear in ε.
        create_graph: keep the graph, to train on the radius.

    In training mode a batch norm normalises by the batch's statistics; an image's gradient takes
    them as given, as in evaluation.
    """
    check_samples(samples, least=0)
    copies = max(samples, 1)
    points = x.repeat_interleave(copies, dim=0)
    if samples:
        points = points + sigma * paired_noise(x, samples)
    found = linearize(model, points, sigma, copies, create_graph)
    mean, var = (value.unflatten(0, (-1, copies)).mean(1) for value in (found.gap, found.var))
    return margin_of(mean, var, sigma, *top_two_of_mean(found.logits, copies))


def paired_noise(x: Tensor, samples: int) -> Tensor:
    """ε, −ε, ε′, −ε′, … of deviation 1: `samples` in a row for each image of x."""
    half = torch.randn(len(x), (samples + 1) // 2, *x.shape[1:], device=x.device, dtype=x.dtype)
    pairs = torch.stack([half, -half], 2).flatten(1, 2)
    return pairs[:, :samples].flatten(0, 1)
