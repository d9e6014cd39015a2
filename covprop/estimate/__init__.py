"""Five ways to one answer: mean and variance of the margin between the top two classes.

| estimator | what it does | cost |
|---|---|---|
| `shared` | one channel covariance a layer, propagated as in the paper | one forward + a Σ pass |
| `calibrated` | the same, variances corrected by a few noisy samples | + those samples |
| `linearized` | σ²‖∇ₓ margin‖²: exact under local linearity, image by image | forward + backward |
| `dense` | the joint covariance of all units: the oracle for small networks | quadratic in units |
| `sampled` | Monte Carlo | n forward passes |
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from covprop.errors import InvalidInput
from covprop.estimate.dense import dense
from covprop.estimate.independence import RUN_ONLY, check_independence
from covprop.estimate.linearized import linearized
from covprop.estimate.result import Margin
from covprop.estimate.sampled import sampled
from covprop.estimate.shared import calibrated, shared
from covprop.mode import switched
from covprop.pixels import check_range, check_sigma

ESTIMATORS: dict[str, Callable[..., Margin]] = {
    "shared": shared,
    "calibrated": calibrated,
    "linearized": linearized,
    "dense": dense,
    "sampled": sampled,
}


def margin(
    model: nn.Module,
    x: Tensor,
    sigma: float,
    estimator: str = "linearized",
    *,
    value_range: tuple[float, float] | None = (0.0, 1.0),
    **options: Any,
) -> Margin:
    """Mean, variance and estimated radius of the margin of each image, by one of five estimators.

    The model is evaluated (dropout off, batch norm by its running statistics) and left as it was.
    One that answers an image by what else is in the batch, or by how many images are, is refused,
    as in `certify`; so is one that returns probabilities for logits.

    Args:
        model: a classifier returning logits [b, classes].
        x: images [b, c, h, w].
        sigma: the noise's standard deviation on the pixel scale.
        estimator: "shared", "calibrated", "linearized", "dense" or "sampled".
        value_range: what pixels must lie in, as in `certify`; None for inputs on another scale,
            on which σ and radii are then measured. With `create_graph` nothing is checked.
        options: of the estimator: `settings` (shared, calibrated), `samples` (calibrated,
            linearized, sampled), `create_graph` (linearized, for training), `chunk` and
            `generator` (sampled).

    `linearized` follows gradients: to it, what forward detaches or computes under no_grad has no
    noise, and the radius comes out too large. Freeze layers by requires_grad_(False) instead.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
        >>> m = margin(model, torch.zeros(2, 1, 2, 2), sigma=0.5, estimator="linearized")
        >>> m.radius.shape
        torch.Size([2])
    """
    if estimator not in ESTIMATORS:
        raise InvalidInput(f"estimator is {estimator!r}: choose one of {', '.join(ESTIMATORS)}.")
    takes = list(inspect.signature(ESTIMATORS[estimator]).parameters)[3:]
    if unknown := [name for name in options if name not in takes]:
        raise InvalidInput(
            f"{estimator} has no option {unknown[0]}: it takes {', '.join(takes) or 'none'}."
        )
    if not isinstance(model, nn.Module) or not isinstance(x, Tensor):
        raise InvalidInput(
            f"margin takes an nn.Module and a tensor, as by torch.as_tensor(x), not "
            f"{type(model).__name__} and {type(x).__name__}."
        )
    if x.ndim < 2 or not len(x):
        raise InvalidInput(f"x has shape {list(x.shape)}: give a batch of at least one image.")
    if not x.is_floating_point():
        raise InvalidInput(f"x is {x.dtype}: give float images with pixels in [0, 1].")
    sigma = check_sigma(sigma)
    if options.get("create_graph"):  # part of a training step, in the model's own mode
        return ESTIMATORS[estimator](model, x, sigma, **options)
    check_range(x, value_range)
    with switched(model, training=False):
        if estimator in RUN_ONLY:
            check_independence(model, x)
        return ESTIMATORS[estimator](model, x, sigma, **options)
