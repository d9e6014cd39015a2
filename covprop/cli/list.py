"""`covprop list`: what recipes, methods, models, data sets and propagation rules there are."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from covprop.errors import InvalidInput

BEGIN = (
    "Where to begin: digits/... for a first try; DATA/minutes/late-... is the best measured "
    "recipe for its cost, on CIFAR-10 cifar10/minutes/late-muon-... --epochs 26, "
    "on MNIST mnist/minutes/reach-muon-... --epochs 32"
)


class Kind(enum.StrEnum):
    """What can be listed."""

    recipes = "recipes"
    methods = "methods"
    noisy = "noisy"
    models = "models"
    datasets = "datasets"
    rules = "rules"


def list_(
    kind: Annotated[Kind, typer.Argument(metavar="KIND", help="What to list.", show_default=False)],
    word: Annotated[
        str | None,
        typer.Argument(metavar="WORD", help="Only names that contain this.", show_default=False),
    ] = None,
) -> None:
    """List what can be named on the command line and in recipes.

    \b
    covprop list recipes             every experiment that comes with the package
    covprop list recipes cifar10     those with cifar10 in their name
    covprop list methods             training methods and their options
    covprop list noisy               methods for wrong labels and their options
    covprop list models              networks and their options
    covprop list datasets            data sets: classes, image size
    covprop list rules               layers and functions that moments can pass through
    """
    lines = _LISTS[kind]()
    if word is not None:
        lines = [line for line in lines if word.casefold() in line[0].casefold()]
        if not lines:
            raise InvalidInput(
                f'None of the {kind} has "{word}" in its name; `covprop list {kind}` shows all.'
            )
    if kind is Kind.recipes:
        typer.echo(BEGIN)
    width = max((len(name) for name, _ in lines), default=0)
    for name, what in lines:
        typer.echo(f"{name:<{width}}  {what}".rstrip())


def _recipes() -> list[tuple[str, str]]:
    import tomllib

    from covprop.train.recipe import shipped

    lines = []
    for name, file in shipped().items():
        raw = tomllib.loads(file.read_text(encoding="utf-8"))
        method, model, epochs = raw["method"], raw["model"]["name"], raw["train"]["epochs"]
        variant = method.get("preset") or method.get("estimator")
        how = f"{method['name']} ({variant})" if variant else method["name"]
        if late := method.get("from_epoch"):
            how += f" after {late} epochs"
        if reach := method.get("reach"):
            how += f", reach {reach}"
        if "weighting" in raw:
            how += f" weighted by {raw['weighting']['name']}"
        muon = ", muon" if raw["train"].get("optimizer") == "muon" else ""
        lines.append((name, f"{how}, {model}, {epochs} epochs{muon}"))
    return lines


def _methods() -> list[tuple[str, str]]:
    from covprop.methods import METHODS

    return [(name, _about("method", target)) for name, target in METHODS.items()]


def _noisy() -> list[tuple[str, str]]:
    from covprop.noisy import METHODS

    return [(name, _about("noisy method", target)) for name, target in METHODS.items()]


def _models() -> list[tuple[str, str]]:
    from covprop.models import MODELS

    return [(name, _about("model", target)) for name, target in MODELS.items()]


def _datasets() -> list[tuple[str, str]]:
    from covprop.data import DATASETS

    return [
        (name, f"{facts.num_classes} classes, {'×'.join(map(str, facts.image_shape))}")
        for name, facts in DATASETS.items()
    ]


def _rules() -> list[tuple[str, str]]:
    from covprop.propagate.registry import describe, registered

    return sorted((describe(op), _first_line(rule.cov)) for op, rule in registered().items())


_LISTS: dict[Kind, Callable[[], list[tuple[str, str]]]] = {
    Kind.recipes: _recipes,
    Kind.methods: _methods,
    Kind.noisy: _noisy,
    Kind.models: _models,
    Kind.datasets: _datasets,
    Kind.rules: _rules,
}


def _about(section: str, target: Callable[..., Any]) -> str:
    """The first line of the documentation, and the options with their defaults."""
    from covprop.options import accepted
    from covprop.train.recipe import GIVEN

    options = accepted(target, skip=GIVEN[section])
    shown = ", ".join(
        name if p.default is p.empty else f"{name}={p.default!r}" for name, p in options.items()
    )
    return " ".join(filter(None, [_first_line(target), f"[{shown}]" if shown else ""]))


def _first_line(target: Any) -> str:
    target = getattr(target, "func", target)  # functools.partial
    return (inspect.getdoc(target) or "").split("\n", 1)[0]
