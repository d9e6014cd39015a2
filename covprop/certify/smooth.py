"""Randomized smoothing: what the smoothed classifier predicts, and how far that holds.

g(x) = the class that f(x + ε), ε ~ N(0, σ²I), returns most often. `certify` is the procedure of
Cohen et al. (2019): guess the class from n0 samples, bound its probability p_A from below with n
fresh ones, and certify the ℓ2 radius σ Φ⁻¹(p_A) or abstain.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np
import torch
from scipy.special import betainc
from torch import Tensor

from covprop.certify.bounds import (
    Ints,
    Question,
    Tally,
    best_lower,
    certified_radius,
    looks,
    run_looks,
    sample_warning,
)
from covprop.certify.noise import ESTIMATE, PREDICT, SELECT
from covprop.certify.sample import Sampler
from covprop.errors import InvalidInput

ABSTAIN = -1
Classifier = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Certificate:
    """Certified predictions: one entry an image, on the CPU (0-dimensional for one image).

    prediction: the class, or −1 for "abstain"; radius: certified ℓ2 radius, 0 on abstention;
    p_lower: lower confidence bound on p_A; count: how many of the n samples went to the class
    guessed; nan: how many were no class at all, because the logits held NaN.
    """

    prediction: Tensor
    radius: Tensor
    p_lower: Tensor
    count: Tensor
    n: Tensor
    nan: Tensor


@dataclass(frozen=True)
class Prediction:
    """Predictions of the smoothed classifier, −1 for "abstain", and the counts behind them."""

    prediction: Tensor
    count: Tensor
    runner_up: Tensor
    n: Tensor
    nan: Tensor


Result = TypeVar("Result", Certificate, Prediction)


class SampleWarning(UserWarning):
    """n is too small for alpha."""


def certify(
    model: Classifier,
    x: Tensor,
    *,
    sigma: float,
    n0: int = 100,
    n: int = 100_000,
    alpha: float = 0.001,
    num_classes: int | None = None,
    batch_size: int = 1024,
    index: int | Sequence[int] | Tensor | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    soft: bool = False,
    delta: float | None = None,
    at_least: float | None = None,
    value_range: tuple[float, float] | None = (0.0, 1.0),
) -> Certificate:
    """Certify images [c, h, w] or [b, c, h, w] against ℓ2 perturbations.

    With probability at least 1 − alpha an image's prediction is what the smoothed classifier
    returns everywhere within `radius`. `model` is any callable from images to logits [b, classes];
    a module is put in eval mode for the time of the call.

    `index` names the images (default 0, 1, …): noise is a function of (seed, index), so a row does
    not depend on which others were certified with it. In float32 on the CPU, with the same number
    of threads, rows are identical; elsewhere they are equal up to rounding in the network.
    `batch_size` counts samples in one forward pass on a GPU; the CPU always runs one block.
    `dtype=torch.bfloat16` runs the network under autocast.

    `delta` or `at_least` make it sequential: samples are drawn until the radius is known within
    delta, or until it is known whether it reaches at_least, n at most. `soft=True` certifies the
    classifier that averages softmax probabilities instead of votes (Salman et al. 2019).

    >>> import covprop, torch
    >>> f = lambda x: torch.stack([x.mean((1, 2, 3)), 0.5 - x.mean((1, 2, 3))], 1)
    >>> c = covprop.certify(f, torch.ones(1, 4, 4), sigma=0.5, n=1000, num_classes=2)
    >>> int(c.prediction), round(float(c.radius), 2)
    (0, 1.23)
    """
    question = check_options(sigma, n0, n, alpha, soft=soft, delta=delta, at_least=at_least)
    if message := sample_warning(n, alpha, sigma, soft=soft):
        warnings.warn(message, SampleWarning, stacklevel=2)
    with Sampler(
        model, x, sigma, num_classes, batch_size, index, seed, device, dtype, soft, value_range
    ) as sampler:
        everyone = np.arange(sampler.images)
        guess = sampler.tally(SELECT, everyone, n0).argmax()

        def draw(size: int, active: Ints) -> Tally:
            return sampler.tally(ESTIMATE, active, size).of(guess[active])

        plan = looks(n, alpha, sequential=question is not None, step=sampler.block)
        lower, count, used = run_looks(
            draw, sampler.images, plan, sigma=sigma, question=question, soft=soft
        )
        nan = sampler.nan(ESTIMATE)
    certificate = Certificate(
        prediction=torch.from_numpy(np.where(lower < 0.5, ABSTAIN, guess)),
        radius=torch.from_numpy(certified_radius(lower, sigma)),
        p_lower=torch.from_numpy(lower),
        count=torch.from_numpy(count),
        n=torch.from_numpy(used),
        nan=torch.from_numpy(nan),
    )
    return _first(certificate) if x.ndim == 3 else certificate


def predict(
    model: Classifier,
    x: Tensor,
    *,
    sigma: float,
    n: int = 100_000,
    alpha: float = 0.001,
    num_classes: int | None = None,
    batch_size: int = 1024,
    index: int | Sequence[int] | Tensor | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    value_range: tuple[float, float] | None = (0.0, 1.0),
) -> Prediction:
    """The smoothed classifier's class, or −1 where n samples cannot tell the top two apart.

    The two-sided binomial test of the top two counts (Hung & Fithian 2019): a class other than
    g(x) is returned with probability at most alpha. The arguments are those of `certify`.
    """
    check_options(sigma, 1, n, alpha)
    with Sampler(
        model, x, sigma, num_classes, batch_size, index, seed, device, dtype, False, value_range
    ) as sampler:
        counts = sampler.tally(PREDICT, np.arange(sampler.images), n).counts
    # NaN is an outcome like any other here; where it comes first, there is nothing to predict.
    order = np.argsort(-counts, axis=1, kind="stable")[:, :2]
    first, second = np.take_along_axis(counts, order, 1).T
    # P(Binomial(a + b, 1/2) ≥ a), doubled: at 1/2 the two tails of the exact test are equal.
    sure = 2.0 * betainc(np.maximum(first, 1), second + 1, 0.5) <= alpha
    is_class = order[:, 0] < counts.shape[1] - 1
    prediction = Prediction(
        prediction=torch.from_numpy(np.where(sure & is_class, order[:, 0], ABSTAIN)),
        count=torch.from_numpy(first.copy()),
        runner_up=torch.from_numpy(second.copy()),
        n=torch.full((len(counts),), n),
        nan=torch.from_numpy(counts[:, -1].copy()),
    )
    return _first(prediction) if x.ndim == 3 else prediction


def _first(result: Result) -> Result:
    return replace(result, **{f.name: getattr(result, f.name)[0] for f in fields(result)})


def check_options(
    sigma: float,
    n0: int,
    n: int,
    alpha: float,
    *,
    soft: bool = False,
    delta: float | None = None,
    at_least: float | None = None,
) -> Question | None:
    """Refuse what cannot be meant; the question that a sequential certificate answers, if any."""
    if not (math.isfinite(sigma) and sigma > 0):
        raise InvalidInput(f"sigma is a positive number on the pixel scale [0, 1], not {sigma}")
    if not 0 < alpha < 1:
        raise InvalidInput(f"alpha is a probability between 0 and 1, not {alpha}")
    if n < 1 or n0 < 1:
        raise InvalidInput(f"at least one sample is needed, not n0 = {n0} and n = {n}")
    if delta is None and at_least is None:
        return None
    largest = float(certified_radius(best_lower(1.0, n, alpha, soft=soft), sigma))
    if at_least is not None and at_least > largest:
        raise InvalidInput(
            f"n = {n} samples certify a radius of {largest:.3g} at most, so at_least = "
            f"{at_least:g} is out of reach; take more samples"
        )
    return Question(delta=delta, at_least=at_least)
