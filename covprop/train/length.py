"""Another length for a recipe."""

from __future__ import annotations

from collections.abc import Sequence

from covprop.errors import InvalidInput
from covprop.train.recipe import Recipe, load

IN_EPOCHS = {
    "method": ("from_epoch", "warmup"),
    "weighting": ("from_epoch",),
}
"""Options that are numbers of epochs, besides the trainer's own."""
NOT_ZERO = ("ramp", "pretrain", "refresh", "layer")
"""Those of a noisy method that stay at least one epoch: 0 would be another method, or none."""


def at_length(recipe: str, epochs: int, overrides: Sequence[str] = ()) -> list[str]:
    """Overrides that shorten or extend a recipe to `epochs`, with its phases in proportion.

    What `overrides` set is not changed; the result belongs behind them. A warm-up of the learning
    rate keeps its length unless it would take the whole run.

    Example:
        >>> at_length("cifar10/gaussian-0.25", 20)
        ['train.epochs=20', 'train.milestones=[10, 15]']
        >>> at_length("noisy/cifar10/smodel-pair-0.45", 20)
        ['train.epochs=20', 'train.decay_from=8', 'method.pretrain=3']
    """
    given = {override.partition("=")[0].strip() for override in overrides}
    if "train.epochs" in given:
        raise InvalidInput("--epochs and --set train.epochs are two lengths; give one of them.")
    whole = load(recipe, overrides)
    share = epochs / whole.train.epochs

    def scaled(phase: int) -> int:
        return min(round(phase * share), epochs - 1)  # whatever begins, begins in time

    changes: dict[str, object] = {"train.epochs": epochs}
    if whole.train.decay_from:
        changes["train.decay_from"] = scaled(whole.train.decay_from)
    if whole.train.warmup_epochs >= epochs:
        changes["train.warmup_epochs"] = whole.train.warmup_epochs * share
    if whole.train.milestones:
        nearer = {max(1, round(m * share)) for m in whole.train.milestones}
        changes["train.milestones"] = sorted(m for m in nearer if m < epochs)
    for section, keys in IN_EPOCHS.items():
        options = getattr(whole, section) or {}
        changes |= {f"{section}.{key}": scaled(options[key]) for key in keys if options.get(key)}
    for key in NOT_ZERO:
        if whole.method.get(key):
            changes[f"method.{key}"] = max(1, scaled(whole.method[key]))
    if whole.method.get("layer"):  # before which nothing is dropped
        changes["method.from_epoch"] = max(scaled(whole.method["from_epoch"]), 1)
    return [f"{key}={value}" for key, value in changes.items() if key not in given]


def never_begins(recipe: Recipe) -> list[str]:
    """A sentence for each part of the recipe that would begin only after its last epoch.

    Example:
        >>> never_begins(load("digits/macer-0.25", ["method.from_epoch=30"]))
        ['method.from_epoch = 30 is not within the 30 epochs: that part of macer never begins.']
    """
    epochs = recipe.train.epochs
    sections = {"method": recipe.method, "weighting": recipe.weighting or {}}
    return [
        f"{section}.from_epoch = {options['from_epoch']} is not within the {epochs} epochs: "
        f"that part of {options['name'] if section == 'method' else section} never begins."
        for section, options in sections.items()
        if options.get("from_epoch", 0) >= epochs
    ]
