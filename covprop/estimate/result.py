"""The answer every estimator gives."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from covprop.errors import CovpropError, InvalidInput, first_line, machine_failed
from covprop.gaussian import Gaussian
from covprop.logits import as_logits
from covprop.propagate.settings import PAPER, Settings
from covprop.radius import gap_between, margin_variance, ratio, top_two


class Margin(NamedTuple):
    """The margin u_top − u_runner_up of each image under the noise; all fields are [b].

    `linearized` at noisy points takes the largest other class at each of them for the runner-up,
    so that its mean may be negative: the class of largest mean then loses more than it wins.
    """

    mean: Tensor
    var: Tensor
    radius: Tensor  # estimated: σ·mean/√var
    top: Tensor
    runner_up: Tensor


def checked_logits(model: nn.Module, x: Tensor) -> Tensor:
    """The model's logits, or InvalidInput if it does not take such images."""
    try:
        returned = model(x)
    except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
        if machine_failed(error) or isinstance(error, CovpropError):
            raise
        raise InvalidInput(
            f"{type(model).__name__} does not accept a {x.dtype} input of shape {list(x.shape)} "
            f"on {x.device}: {first_line(error)}{' (one image is x[None])' * (x.ndim == 3)}"
        ) from error
    return as_logits(returned, len(x), type(model).__name__)


def margin_of(mean: Tensor, var: Tensor, sigma: float, top: Tensor, runner_up: Tensor) -> Margin:
    """A `Margin` with its radius filled in."""
    return Margin(mean, var, sigma * ratio(mean, var), top, runner_up)


def gaussian_margin(out: Gaussian, sigma: float, settings: Settings = PAPER) -> Margin:
    """The margin of logits that are Gaussian with one covariance for the batch."""
    top, runner_up = top_two(out.mean)
    gap = gap_between(out.mean.to(out.cov.dtype), top, runner_up)
    var = margin_variance(out.cov, top, runner_up, settings)
    return margin_of(gap, var, sigma, top, runner_up)
