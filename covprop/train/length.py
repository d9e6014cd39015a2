"""Another length for a recipe."""

from __future__ import annotations

from covprop.train.recipe import load

PHASES = {"method": ("from_epoch", "warmup"), "weighting": ("from_epoch",)}
"""Options that are numbers of epochs, besides the trainer's own."""


def at_length(recipe: str, epochs: int) -> list[str]:
    """Overrides under which a run of `epochs` goes through its recipe's phases in proportion.

    Example:
        >>> at_length("cifar10/gaussian-0.25", 20)
        ['train.epochs=20', 'train.milestones=[10, 15]']
    """
    whole = load(recipe)
    share = epochs / whole.train.epochs

    def scaled(phase: int) -> int:
        return round(phase * share)

    changes = [f"train.epochs={epochs}"]
    if whole.train.decay_from:
        changes.append(f"train.decay_from={scaled(whole.train.decay_from)}")
    if whole.train.milestones:
        nearer = {max(1, scaled(m)) for m in whole.train.milestones}
        changes.append(f"train.milestones={sorted(m for m in nearer if m < epochs)}")
    for section, keys in PHASES.items():
        options = getattr(whole, section) or {}
        changes += [
            f"{section}.{key}={scaled(options[key])}" for key in keys if options.get(key, 0)
        ]
    return changes
