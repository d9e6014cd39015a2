"""Randomized smoothing: what the smoothed classifier predicts, and how far that holds.

g(x) = the class that f(x + ε), ε ~ N(0, σ²I), returns most often. `certify` is the procedure of
Cohen et al. (2019): guess the class from n0 samples, bound its probability p_A from below with n
fresh ones, and certify the ℓ2 radius σ Φ⁻¹(p_A) or abstain.

Both functions draw samples in one of two ways: `Sampler` runs plain passes, and on a GPU a queue
of images goes through recorded passes (`fast.py`). Bounds and decisions are the same.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np
import torch
from scipy.special import betainc
from torch import Tensor

from covprop.certify.bounds import (
    Floats,
    Ints,
    Looks,
    Question,
    Tally,
    certified_radius,
    looks,
    run_looks,
    sample_warning,
)
from covprop.certify.fast import Certifying, Predicting, Source, on_fast_path, settle, stack
from covprop.certify.inputs import (
    as_index,
    check_images,
    check_label_range,
    check_labels,
    check_options,
)
from covprop.certify.noise import ESTIMATE, PREDICT, SELECT, block_size
from covprop.certify.sample import Sampler, Sampling
from covprop.logits import Classifier
from covprop.pixels import check_sigma

ABSTAIN = -1


@dataclass(frozen=True)
class Certificate:
    """Certified predictions: one entry an image, on the CPU (0-dimensional for one image).

    prediction: the class, or −1 for "abstain"; radius: certified ℓ2 radius, 0 on abstention;
    p_lower: lower confidence bound on p_A; count: how many of the n samples went to the class
    guessed; nan: how many were no class at all, because the logits held NaN.

    n is 0 where `skip_wrong` left a wrong guess unbounded: prediction is that guess then, radius
    and p_lower are 0 because nothing is certified, and nan counts samples of the guess.
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


Answer = TypeVar("Answer", Certificate, Prediction)


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
    batch_size: int | None = None,
    index: int | Sequence[int] | Tensor | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    soft: bool = False,
    delta: float | None = None,
    at_least: float | Sequence[float] | None = None,
    labels: int | Sequence[int] | Tensor | None = None,
    skip_wrong: bool = False,
    value_range: tuple[float, float] | None = (0.0, 1.0),
    fast: bool | None = None,
    compiled: bool | None = None,
) -> Certificate:
    """Certify images [c, h, w] or [b, c, h, w] against ℓ2 perturbations.

    With probability at least 1 − alpha an image's prediction is what the smoothed classifier
    returns everywhere within `radius`. `model` is any callable from images to logits [b, classes].
    A module is put in eval mode during the call; a function is called as it is. Either is refused
    where an image's logits depend on the rest of its batch.

    `index` names the images (default 0, 1, …): noise is a function of (seed, index), so a row does
    not depend on which others were certified with it. In float32 on the CPU, with the same number
    of threads, rows are identical; elsewhere they are equal up to rounding in the network.
    `batch_size` counts samples in one forward pass on a GPU (default by image size, 2112 for
    32 × 32); the CPU always runs one block. `dtype=torch.bfloat16` runs the network under autocast.

    `delta` or `at_least` make it sequential: with n samples at most, it stops once all n would be
    expected to certify at most delta more, or once it is known whether they certify at_least (one
    radius, or each of several). `soft=True` certifies the classifier that averages softmax
    probabilities instead of votes (Salman et al. 2019).

    `skip_wrong=True` spends the n samples only on images whose guess is their entry of `labels`.
    The others count as 0 in every certified accuracy and in the ACR, whatever their bound; they
    keep the guess, with radius 0 and n = 0. All other images get the same certificate as without.

    On a GPU, work of a hundred passes or more replays a CUDA graph. The network is compiled for
    it where that pays, or if `compiled` says so; in half precision batch norms are folded into
    weights. `fast=False` runs plain passes on the same noise; on a CPU `fast=True` draws a GPU's
    noise. For answers one by one, as they come: `from covprop.certify import certify_each`.

    >>> import covprop, torch
    >>> f = lambda x: torch.stack([x.mean((1, 2, 3)), 0.5 - x.mean((1, 2, 3))], 1)
    >>> c = covprop.certify(f, torch.ones(1, 4, 4), sigma=0.5, n=1000, num_classes=2)
    >>> int(c.prediction), round(float(c.radius), 2)
    (0, 1.23)
    """
    sigma = check_sigma(sigma)
    check_images(x, value_range)
    images = x if x.ndim == 4 else x[None]
    step = block_size(tuple(images.shape[1:]))
    question = check_options(
        sigma, n0, n, alpha, soft=soft, delta=delta, at_least=at_least, step=step
    )
    if message := sample_warning(n, alpha, sigma, soft=soft):
        warnings.warn(message, SampleWarning, stacklevel=2)
    names = as_index(index, len(images))
    plan = looks(n, alpha, sequential=question is not None, step=step)
    right = check_labels(labels, len(images), num_classes, skip_wrong)
    how = Sampling(sigma, num_classes, batch_size, seed, device, dtype, soft, value_range, compiled)
    if len(images) and on_fast_path(model, images, how, fast, len(images) * n):
        source = zip(names, images, strict=True)
        done = certify_queue(model, source, n0, plan, question, how, len(images), right)
        found = in_order(list(done))
    else:
        with Sampler(model, images, names, how) as sampler:
            found = certified(sampler, n0, plan, question, right)
    return first(found) if x.ndim == 3 else found


def certified(
    sampler: Sampler, n0: int, plan: Looks, question: Question | None, right: list[int] | None
) -> Certificate:
    """Certificates of a sampler's images; `right` are their labels if wrong guesses are skipped."""
    check_label_range(right, sampler.num_classes)
    guess = sampler.tally(SELECT, np.arange(sampler.images), n0).argmax()

    def draw(size: int, active: Ints) -> Tally:
        return sampler.tally(ESTIMATE, active, size).of(guess[active])

    asked = np.full(len(guess), True) if right is None else guess == np.array(right)
    lower, count, used = run_looks(
        draw, asked, plan, sigma=sampler.sigma, question=question, soft=sampler.soft
    )
    nan = np.where(asked, sampler.nan(ESTIMATE), sampler.nan(SELECT))
    return _certificate(guess, lower, count, used, nan, sampler.sigma)


def certify_queue(
    model: Classifier,
    source: Source,
    n0: int,
    plan: Looks,
    question: Question | None,
    how: Sampling,
    count: int,
    right: list[int] | None = None,
) -> Iterator[tuple[list[int], Certificate]]:
    """Certificates of the `count` images of a source as they come, each with its place in it.

    `right` are their labels if wrong guesses are to be skipped.
    """
    procedure = Certifying(n0, plan, sigma=how.sigma, question=question, soft=how.soft, right=right)
    # A guess for a sequential certificate: what it takes is not known beforehand.
    samples = count * plan.sizes[-1] // (1 if question is None else 8)
    for images in settle(model, source, procedure, how, samples):
        found = _certificate(*procedure.found(images), how.sigma)
        yield [image.number for image in images], found


def _certificate(
    guess: Ints, lower: Floats, count: Ints, used: Ints, nan: Ints, sigma: float
) -> Certificate:
    # A guess that was not bounded (used = 0) is returned as it is, with radius 0. All others
    # abstain unless their bound is at least ½, which a NaN is not.
    return Certificate(
        prediction=torch.from_numpy(np.where((lower >= 0.5) | (used == 0), guess, ABSTAIN)),
        radius=torch.from_numpy(certified_radius(lower, sigma)),
        p_lower=torch.from_numpy(lower),
        count=torch.from_numpy(count),
        n=torch.from_numpy(used),
        nan=torch.from_numpy(nan),
    )


def predict(
    model: Classifier,
    x: Tensor,
    *,
    sigma: float,
    n: int = 100_000,
    alpha: float = 0.001,
    num_classes: int | None = None,
    batch_size: int | None = None,
    index: int | Sequence[int] | Tensor | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    value_range: tuple[float, float] | None = (0.0, 1.0),
    fast: bool | None = None,
    compiled: bool | None = None,
) -> Prediction:
    """The smoothed classifier's class, or −1 where n samples cannot tell the top two apart.

    The two-sided binomial test of the top two counts (Hung & Fithian 2019): a class other than
    g(x) is returned with probability at most alpha. The arguments are those of `certify`.
    """
    sigma = check_sigma(sigma)
    check_options(sigma, 1, n, alpha)
    check_images(x, value_range)
    images = x if x.ndim == 4 else x[None]
    names = as_index(index, len(images))
    how = Sampling(
        sigma, num_classes, batch_size, seed, device, dtype, False, value_range, compiled
    )
    if len(images) and on_fast_path(model, images, how, fast, len(images) * n):
        source = zip(names, images, strict=True)
        found = in_order(list(predict_queue(model, source, n, alpha, how, len(images))))
    else:
        with Sampler(model, images, names, how) as sampler:
            found = predicted(sampler, n, alpha)
    return first(found) if x.ndim == 3 else found


def predicted(sampler: Sampler, n: int, alpha: float) -> Prediction:
    """Predictions for a sampler's images."""
    return _prediction(sampler.tally(PREDICT, np.arange(sampler.images), n).counts, n, alpha)


def predict_queue(
    model: Classifier, source: Source, n: int, alpha: float, how: Sampling, count: int
) -> Iterator[tuple[list[int], Prediction]]:
    """Predictions of the `count` images of a source as they come, each with its place in it."""
    for images in settle(model, source, Predicting(n), how, count * n):
        counts = stack([image.tally for image in images if image.tally is not None]).counts
        yield [image.number for image in images], _prediction(counts, n, alpha)


def _prediction(counts: Ints, n: int, alpha: float) -> Prediction:
    # NaN counts as one more class, the last; if it comes first, the prediction abstains.
    order = np.argsort(-counts, axis=1, kind="stable")[:, :2]
    first, second = np.take_along_axis(counts, order, 1).T
    # P(Binomial(a + b, 1/2) ≥ a), doubled: at 1/2 the two tails of the exact test are equal.
    sure = 2.0 * betainc(np.maximum(first, 1), second + 1, 0.5) <= alpha
    is_class = order[:, 0] < counts.shape[1] - 1
    return Prediction(
        prediction=torch.from_numpy(np.where(sure & is_class, order[:, 0], ABSTAIN)),
        count=torch.from_numpy(first.copy()),
        runner_up=torch.from_numpy(second.copy()),
        n=torch.full((len(counts),), n),
        nan=torch.from_numpy(counts[:, -1].copy()),
    )


def in_order(parts: list[tuple[list[int], Answer]]) -> Answer:
    """Answers put together, in the order of the places they come with."""
    order = torch.tensor([place for places, _ in parts for place in places]).argsort()
    names = [field.name for field in fields(parts[0][1])]
    whole = {name: torch.cat([getattr(part, name) for _, part in parts]) for name in names}
    return replace(parts[0][1], **{name: value[order] for name, value in whole.items()})


def first(answer: Answer) -> Answer:
    """The answer for one image alone."""
    return replace(answer, **{f.name: getattr(answer, f.name)[0] for f in fields(answer)})
