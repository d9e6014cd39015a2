"""From a checked recipe to the things a run needs, all at once or not at all."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from covprop import data, files, methods, models, noise
from covprop.data.label_noise import NoisyLabels, corrupt, read_table, table
from covprop.errors import InvalidInput
from covprop.independence import batch_with, check_norms, depends_on_batch
from covprop.logits import as_logits, check_scale
from covprop.mode import switched
from covprop.train import folder
from covprop.train.distributed import World
from covprop.train.recipe import Recipe
from covprop.train.step import MethodStep, TrainStep


def check_recipe(recipe: Recipe) -> None:
    """Refuse the name or file of a recipe in its place."""
    if not isinstance(recipe, Recipe):
        raise InvalidInput(
            f"the recipe is a {type(recipe).__name__}, {str(recipe)!r}; load it first, with "
            "covprop.train.load."
        )


def with_facts(recipe: Recipe, split: data.AnyImages) -> Recipe:
    """The recipe with what the data set says of itself; contradictions are refused."""
    options = recipe.data
    facts: dict[str, Any] = {"num_classes": split.num_classes, "image_shape": split.image_shape}
    for key, fact in facts.items():
        given = getattr(options, key)
        if given is not None and given != fact:
            raise InvalidInput(f"data.{key} is {given} in the recipe, but {fact} in {split.name}.")
    if split.num_classes < 2:
        raise InvalidInput(
            f"{options.name} has one class only; a classifier needs images of at least two."
        )
    for key in ("mean", "std"):
        given = getattr(options, key)
        found = getattr(split, key) if given is None else given
        facts[key] = found if options.normalize else None
    return dataclasses.replace(recipe, data=dataclasses.replace(options, **facts))


def check_batch(recipe: Recipe, split: data.AnyImages, here: World) -> None:
    """A step always has a whole batch, in equal shares."""
    size = recipe.train.batch_size
    if size > len(split):
        raise InvalidInput(
            f"train.batch_size = {size} is more than the {len(split)} training images of "
            f"{split.name}; set it to at most that."
        )
    if size % here.size:
        raise InvalidInput(
            f"train.batch_size = {size} cannot be split evenly over {here.size} processes; "
            f"use {size // here.size * here.size or here.size}."
        )


@contextmanager
def claimed(
    out: Path, recipe: Recipe, restart: bool, here: World, console: Console | None
) -> Iterator[None]:
    """The first process makes and holds the folder; all fail together if it cannot.

    If a run fails before it has a checkpoint (a recipe that is refused, too little memory for its
    batch), a folder that was fresh keeps no config, and one that was made for it is removed.
    """
    made: list[Path] = []

    def prepare() -> None:
        if restart and (old := folder.move_aside(out)) and console:
            console.print(f"The earlier run is kept as {old}.", highlight=False, soft_wrap=True)
        made.extend(folder.make(out))

    here.first_does(prepare)
    lock = folder.locked(out)
    here.first_does(lock.__enter__)
    names = folder.to_come(out)
    try:
        here.first_does(lambda: folder.claim(out, recipe.as_dict()))
        yield
    except Exception:
        if here.first:
            folder.withdraw(out, names, made)
        raise
    finally:
        if here.first:
            lock.__exit__(None, None, None)


def with_labels(
    recipe: Recipe, split: data.AnyImages, here: World
) -> tuple[data.AnyImages, NoisyLabels | None]:
    """The training split under the labels that the recipe asks for."""
    if recipe.labels is None:
        return split, None
    if here.size > 1:
        raise InvalidInput(
            "A recipe with [labels] chooses among the images of a whole batch, so it trains in "
            "one process; start it without torchrun."
        )
    labels = corrupt(split.labels, split.num_classes, **dataclasses.asdict(recipe.labels))
    return dataclasses.replace(split, labels=labels.noisy), labels


def keep_labels(out: Path, labels: NoisyLabels | None) -> None:
    """Write labels.tsv into the run folder; a run that goes on must see what it began with."""
    if labels is None:
        return
    path = out / "labels.tsv"
    if not path.exists():
        files.write(path, table(labels))
    elif not torch.equal(read_table(path).noisy, labels.noisy):
        raise InvalidInput(
            f"{path} holds other labels than the data and the recipe give now; restore them, "
            "choose another --out, or start over with --restart."
        )


def build_model(recipe: Recipe, purpose: str = "weights") -> nn.Module:
    """The recipe's model with its first, random weights; another `purpose` draws others."""
    torch.manual_seed(noise.seed_of(recipe.train.seed, purpose))
    facts, options = recipe.data, dict(recipe.model)
    assert facts.num_classes is not None
    assert facts.image_shape is not None
    return models.build(
        options.pop("name"),
        num_classes=facts.num_classes,
        image_shape=facts.image_shape,
        mean=facts.mean,
        std=facts.std,
        **options,
    )


def try_model(model: nn.Module, recipe: Recipe, device: torch.device) -> None:
    """Refuse a user's own model that does not fit the data, before there is anything to lose."""
    name, shape, classes = recipe.model["name"], recipe.data.image_shape, recipe.data.num_classes
    if ".py:" not in name:
        return
    assert shape is not None
    certifiable = recipe.labels is None  # where labels may be wrong, they are what is asked about
    if certifiable:
        check_norms(model)

    def logits(images: Tensor) -> Tensor:
        try:
            with torch.no_grad():
                returned = model(images)
        except (Exception, SystemExit) as error:
            raise InvalidInput(
                f'Model "{name}" fails on an image of {"×".join(map(str, shape))} with '
                f"{type(error).__name__}: {error}"
            ) from error
        return as_logits(returned, len(images), f'Model "{name}"')

    with switched(model, training=False):
        first = logits(torch.zeros(1, *shape, device=device))
        found = first.shape[1]
        image = torch.full(shape, 0.5, device=device)
        mixes = certifiable and depends_on_batch(
            lambda *other: logits(batch_with(image, *other))[0]
        )
    if found != classes:
        raise InvalidInput(
            f'Model "{name}" returns {found} logits for an image, but {recipe.data.name} has '
            f"{classes} classes; its function may take num_classes and image_shape as parameters."
        )
    check_scale(first, f'Model "{name}"')
    if mixes:
        raise InvalidInput(
            f'Model "{name}" answers an image by what else is in the batch, or by how many images '
            "are, so that nothing could be certified of it; compute means and the like within an "
            "image, or use nn.BatchNorm2d."
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InvalidInput(
            f'Model "{name}" has no parameter to train; leave requires_grad set for some.'
        )


def build_method(
    recipe: Recipe, images: int, device: torch.device
) -> tuple[methods.Method, methods.RadiusWeights | None]:
    """The recipe's method, and the weights of the training images where it asks for them."""
    assert recipe.data.image_shape is not None
    place: dict[str, Any] = {"sigma": recipe.noise.training, "input_shape": recipe.data.image_shape}
    method = methods.build(**recipe.method, **place)
    if recipe.weighting is None:
        return method, None
    options = dict(recipe.weighting)
    method = methods.WithRadius(method, of=options.pop("name"), **place)
    return method, methods.RadiusWeights(images, device=device, **options)


def build_step(
    recipe: Recipe, model: nn.Module, images: int, here: World, labels: NoisyLabels | None
) -> tuple[TrainStep, methods.RadiusWeights | None]:
    """What a training step calls, and the weights of the images where the recipe has them."""
    if labels is None:
        method, weights = build_method(recipe, images, here.device)
        return MethodStep(model, method), weights
    from covprop import noisy

    assert recipe.labels is not None
    assert recipe.data.num_classes is not None
    assert recipe.data.image_shape is not None
    task = noisy.Task(
        images=images,
        num_classes=recipe.data.num_classes,
        noise_rate=labels.rate if recipe.labels.rate is None else recipe.labels.rate,
        sigma=recipe.noise.training,
        input_shape=recipe.data.image_shape,
        new_network=lambda: build_model(recipe, "second network"),
    )
    return noisy.NoisyStep(model, noisy.build(task=task, **recipe.method), task, labels.clean), None
