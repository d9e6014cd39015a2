"""What a run says before its first step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from covprop.data import DATASETS, AnyImages
from covprop.data.fingerprint import fingerprint
from covprop.train.length import never_begins
from covprop.train.recipe import Recipe

LARGEST_SIGMA = 2.0
"""A larger σ is probably meant for pixels of 0 to 255."""


def opening(
    recipe: Recipe, model: nn.Module, images: int, steps: int, device: torch.device
) -> list[str]:
    """What is trained, and what of the recipe may not be meant."""
    about = summary(recipe, model, images, steps, device)
    return [about, *never_begins(recipe), *drowned(recipe.noise.sigma)]


def continuing(out: Path, epoch: int, step: int, again: int) -> str:
    """Where a run goes on: at its last checkpoint, after which `again` epochs had come.

    Example:
        >>> continuing(Path("run"), epoch=3, step=0, again=2)
        'continuing run at epoch 4, step 0, its last checkpoint; 2 epochs are trained again'
    """
    where = f"at epoch {epoch + 1}, step {step}, its last checkpoint"
    if not (epoch or step):
        where = "from the beginning, for want of a checkpoint"
    epochs = "1 epoch is" if again == 1 else f"{again} epochs are"
    return f"continuing {out} {where}" + (f"; {epochs} trained again" if again else "")


def images_of(recipe: Recipe, data: AnyImages) -> dict[str, Any]:
    """How many training images there are and, of an own set, which."""
    own = recipe.data.name not in DATASETS
    return {"images": len(data), "fingerprint": fingerprint(data) if own else ""}


def other_images(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """A sentence about a run that goes on with other training images.

    Example:
        >>> other_images({"images": 80, "fingerprint": ""}, {"images": 80, "fingerprint": ""})
        []
    """
    if before == now:
        return []
    what = f"It was trained on {before['images']} images so far, now there are {now['images']}"
    if before["images"] == now["images"]:
        what = "The training images or their labels are others than so far"
    return [f"{what}: it ends with other weights than one run would have."]


def drowned(sigma: float) -> list[str]:
    """A sentence about noise that is meant for pixels of 0 to 255.

    Example:
        >>> drowned(64.0)
        ['noise.sigma is on the [0, 1] pixel scale: 64 would drown every image; 64/255 is 0.251.']
    """
    if sigma <= LARGEST_SIGMA:
        return []
    return [
        f"noise.sigma is on the [0, 1] pixel scale: {sigma:g} would drown every image; "
        f"{sigma:g}/255 is {sigma / 255:.3g}."
    ]


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
