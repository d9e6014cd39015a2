"""Certificates of any number of images, one after the other, each as soon as it is known."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

from torch import Tensor

from covprop.certify.bounds import looks, sample_warning
from covprop.certify.fast import Source, on_fast_path
from covprop.certify.inputs import check_labels, check_options
from covprop.certify.noise import block_size
from covprop.certify.sample import Sampling, in_turn
from covprop.certify.smooth import (
    Certificate,
    Prediction,
    SampleWarning,
    certified,
    certify_queue,
    predict_queue,
    predicted,
)
from covprop.errors import InvalidInput
from covprop.logits import Classifier
from covprop.pixels import check_sigma


def certify_each(
    model: Classifier,
    images: Source,
    count: int,
    *,
    sigma: float,
    n0: int = 100,
    n: int = 100_000,
    alpha: float = 0.001,
    soft: bool = False,
    delta: float | None = None,
    at_least: float | Sequence[float] | None = None,
    labels: Sequence[int] | Tensor | None = None,
    skip_wrong: bool = False,
    fast: bool | None = None,
    **more: Any,
) -> Iterator[tuple[list[int], Certificate]]:
    """Certify `count` images (index, x [c, h, w]), and yield each answer as soon as it is known.

    An item is a list of places in the sequence, and a certificate with as many entries. On a GPU
    images that need more samples are overtaken by others; elsewhere the order is kept. The
    arguments are those of `certify`; `labels` are in the order of the images.

    >>> f = lambda x: torch.stack([x.mean((1, 2, 3)), 0.5 - x.mean((1, 2, 3))], 1)
    >>> images = ((i, torch.ones(1, 4, 4)) for i in range(3))
    >>> found = certify_each(f, images, 3, sigma=0.5, n=1000, num_classes=2)
    >>> [(places, c.prediction.tolist()) for places, c in found]
    [([0], [0]), ([1], [0]), ([2], [0])]
    """
    sigma = check_sigma(sigma)
    source, x = _peek(images)
    step = 1 if x is None else block_size(tuple(x.shape))
    question = check_options(
        sigma, n0, n, alpha, soft=soft, delta=delta, at_least=at_least, step=step
    )
    if message := sample_warning(n, alpha, sigma, soft=soft):
        warnings.warn(message, SampleWarning, stacklevel=2)
    right = check_labels(labels, count, more.get("num_classes"), skip_wrong)
    if x is None:
        return
    how = Sampling(sigma, soft=soft, **more)
    plan = partial(looks, n, alpha, sequential=question is not None)
    if on_fast_path(model, x, how, fast, count * n):
        whole = plan(step=step)
        yield from certify_queue(model, source, n0, whole, question, how, count, right)
        return
    for place, sampler in enumerate(in_turn(model, source, how)):
        own = None if right is None else [right[place]]
        yield [place], certified(sampler, n0, plan(step=sampler.block), question, own)


def predict_each(
    model: Classifier,
    images: Source,
    count: int,
    *,
    sigma: float,
    n: int = 100_000,
    alpha: float = 0.001,
    fast: bool | None = None,
    **more: Any,
) -> Iterator[tuple[list[int], Prediction]]:
    """`predict` for `count` images (index, x [c, h, w]) one by one; see `certify_each`."""
    sigma = check_sigma(sigma)
    check_options(sigma, 1, n, alpha)
    source, x = _peek(images)
    if x is None:
        return
    how = Sampling(sigma, **more)
    if on_fast_path(model, x, how, fast, count * n):
        yield from predict_queue(model, source, n, alpha, how, count)
        return
    for place, sampler in enumerate(in_turn(model, source, how)):
        yield [place], predicted(sampler, n, alpha)


def _peek(images: Source) -> tuple[Iterator[tuple[int, Tensor]], Tensor | None]:
    """The images again, and the first of them; None if there is none."""
    source = iter(images)
    first = next(source, None)
    if first is not None and not (isinstance(first, tuple) and len(first) == 2):
        raise InvalidInput("images come with their index, as by enumerate(images)")
    return (iter(()), None) if first is None else (chain([first], source), first[1])
