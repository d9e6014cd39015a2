"""Learning rates as pure functions of the step: nothing to save, nothing to get out of step."""

from __future__ import annotations

import math

from covprop.train.options import TrainOptions

START, END = 25.0, 1e4
"""A one-cycle run starts at lr/25 and ends at lr/25/10⁴, the values it was published with."""


def lr_at(options: TrainOptions, step: int, steps_per_epoch: int) -> float:
    """The learning rate of the global step `step` (counted from 0 over the whole run).

    - constant: lr
    - step: lr · gamma^(number of milestones reached), a milestone being an epoch counted from 0
    - cosine: lr · (1 + cos πt)/2, t running from 0 to 1 after the warm-up
    - one-cycle: a cosine rise from lr/25 to lr until `peak`, then a cosine fall to almost 0
    - linear: lr until the epoch `decay_from`, then a straight line to 0 at the end of the run

    In the warm-up the rate rises linearly, reaching its full value after `warmup_epochs`.

    Example:
        >>> options = TrainOptions(epochs=20, lr=0.1, milestones=(10,))
        >>> [round(lr_at(options, epoch * 5, 5), 3) for epoch in (0, 9, 10)]
        [0.1, 0.1, 0.01]
    """
    total = options.epochs * steps_per_epoch
    if options.schedule == "one-cycle":
        return _one_cycle(options.lr, step, total, options.peak)
    warmup = options.warmup_epochs * steps_per_epoch
    rise = min(1.0, (step + 1) / warmup) if warmup else 1.0
    if options.schedule == "step":
        passed = sum(step >= m * steps_per_epoch for m in options.milestones)
        return rise * options.lr * options.gamma**passed
    if options.schedule == "cosine":
        t = max(0.0, (step - warmup) / (total - warmup))
        return rise * _between(options.lr, 0.0, t)
    if options.schedule == "linear":
        fall = (total - step) / (total - options.decay_from * steps_per_epoch)
        return rise * options.lr * min(1.0, fall)
    return rise * options.lr


def betas_at(options: TrainOptions, step: int, steps_per_epoch: int) -> tuple[float, float]:
    """AdamW's betas at the global step `step`: the first becomes `late_beta1` at `decay_from`.

    Example:
        >>> options = TrainOptions(20, schedule="linear", decay_from=10, late_beta1=0.1)
        >>> [betas_at(options, epoch * 5, 5)[0] for epoch in (0, 9, 10)]
        [0.9, 0.9, 0.1]
    """
    first, second = options.betas
    if options.late_beta1 is not None and step >= options.decay_from * steps_per_epoch:
        first = options.late_beta1
    return first, second


def _one_cycle(lr: float, step: int, total: int, peak: float) -> float:
    top = peak * total - 1
    if step <= top:
        return _between(lr / START, lr, step / top if top > 0 else 1.0)
    last = total - 1 - top
    return _between(lr, lr / START / END, (step - top) / last if last > 0 else 1.0)


def _between(first: float, last: float, t: float) -> float:
    """From `first` at t = 0 to `last` at t = 1 along half a cosine."""
    return last + (first - last) * (1 + math.cos(math.pi * min(t, 1.0))) / 2
