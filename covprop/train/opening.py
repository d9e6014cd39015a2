"""What a run says before its first step."""

from __future__ import annotations

import torch
from torch import nn

from covprop.train.length import never_begins
from covprop.train.recipe import Recipe


def opening(
    recipe: Recipe, model: nn.Module, images: int, steps: int, device: torch.device
) -> list[str]:
    """What is trained, and what of the recipe may not be meant."""
    return [summary(recipe, model, images, steps, device), *never_begins(recipe)]


def summary(recipe: Recipe, model: nn.Module, images: int, steps: int, device: torch.device) -> str:
    """What is trained on what, in a line.

    Example:
        >>> from covprop.train.recipe import load
        >>> recipe = load("digits/gaussian-0.25", ["train.epochs=3"])
        >>> summary(recipe, nn.Linear(9, 9), images=1437, steps=11, device=torch.device("cpu"))
        'gaussian: lenet of 90 parameters, 1,437 training images, 3 epochs of 11 steps, on cpu'
    """
    name = recipe.model["name"].rpartition("/")[2]  # of an own model without its folder
    parameters = sum(parameter.numel() for parameter in model.parameters())
    epochs = "1 epoch" if recipe.train.epochs == 1 else f"{recipe.train.epochs} epochs"
    return (
        f"{recipe.method['name']}: {name} of {parameters:,} parameters, {images:,} training "
        f"images, {epochs} of {steps} steps, on {device}"
    )
