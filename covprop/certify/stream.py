"""Certificates of any number of images, as they come: nothing waits for the last one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from torch import Tensor

from covprop.certify.bounds import looks
from covprop.certify.calls import check_labels, check_options, on_fast_path
from covprop.certify.each import Source
from covprop.certify.noise import block_size
from covprop.certify.sample import Way
from covprop.certify.smooth import (
    Certificate,
    Prediction,
    certify,
    certify_queue,
    predict,
    predict_queue,
)
from covprop.logits import Classifier


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
    """Certify `count` images (index, x [c, h, w]), and yield them as they get their answers.

    Each time the places in the sequence, and a certificate with as many entries. On a GPU images
    that need more samples are overtaken; elsewhere one comes after the other. The arguments are
    those of `certify`; `labels` are in the order of the images.

    >>> f = lambda x: torch.stack([x.mean((1, 2, 3)), 0.5 - x.mean((1, 2, 3))], 1)
    >>> images = ((i, torch.ones(1, 4, 4)) for i in range(3))
    >>> found = certify_each(f, images, 3, sigma=0.5, n=1000, num_classes=2)
    >>> [(places, c.prediction.tolist()) for places, c in found]
    [([0], [0]), ([1], [0]), ([2], [0])]
    """
    question = check_options(sigma, n0, n, alpha, soft=soft, delta=delta, at_least=at_least)
    right = check_labels(labels, count, more.get("num_classes")) if skip_wrong else None
    source, x = _peek(images)
    if x is None:
        return
    way = Way(sigma, soft=soft, **more)
    if not on_fast_path(model, x, way, fast, count * n):
        given = {"n0": n0, "n": n, "alpha": alpha, "soft": soft, **more}
        given |= {"delta": delta, "at_least": at_least, "skip_wrong": skip_wrong, "fast": False}
        for place, (index, image) in enumerate(source):
            own = None if right is None else right[place]
            found = certify(model, image[None], sigma=sigma, index=index, labels=own, **given)
            yield [place], found
        return
    plan = looks(n, alpha, sequential=question is not None, step=block_size(tuple(x.shape)))
    yield from certify_queue(model, source, n0, plan, question, way, count, right)


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
    """`predict` for `count` images (index, x [c, h, w]), as they come; see `certify_each`."""
    check_options(sigma, 1, n, alpha)
    source, x = _peek(images)
    if x is None:
        return
    way = Way(sigma, **more)
    if on_fast_path(model, x, way, fast, count * n):
        yield from predict_queue(model, source, n, alpha, way, count)
        return
    for place, (index, image) in enumerate(source):
        given = {"n": n, "alpha": alpha, "fast": False, **more}
        yield [place], predict(model, image[None], sigma=sigma, index=index, **given)


def _peek(images: Source) -> tuple[Iterator[tuple[int, Tensor]], Tensor | None]:
    """The images, and the first of them."""
    source = iter(images)
    first = next(source, None)
    return (iter(()), None) if first is None else (chain([first], source), first[1])
