"""Every shipped recipe is complete, valid and what the script that wrote it says."""

import importlib.util
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import torch

from covprop import models
from covprop.data import DATASETS
from covprop.methods import build as build_method
from covprop.train import load, shipped
from covprop.train.recipe import dumps

FOLDER = Path(__file__).parent.parent / "recipes"


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_recipes", FOLDER / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_files_are_what_the_script_writes() -> None:
    texts = _script().recipes()
    assert {name: file.read_text(encoding="utf-8") for name, file in shipped().items()} == texts


def test_the_published_grid_is_complete() -> None:
    names = set(shipped())
    methods = ("gaussian", "macer", "smoothadv", "consistency", "radius", "radius-reference")
    for data in ("mnist", "svhn", "cifar10", "imagenet", "places365"):
        sigmas = ["0.25", "0.50"] + ["1.00"] * (data in ("cifar10", "imagenet", "places365"))
        for sigma in sigmas:
            assert {f"{data}/{method}-{sigma}" for method in methods} <= names
    assert {f"digits/{method}-0.25" for method in methods} <= names


@pytest.mark.parametrize("name", shipped())
def test_a_recipe_is_valid_down_to_its_method_and_model(name: str) -> None:
    file = shipped()[name]
    first = file.read_text(encoding="utf-8").split("\n", 1)[0]
    assert first.startswith("# ")
    assert f"covprop train {name}" in first
    recipe = load(name)
    assert name.endswith(f"-{recipe.noise.sigma:.2f}")
    facts = DATASETS[recipe.data.name]
    build_method(sigma=recipe.noise.sigma, input_shape=facts.image_shape, **recipe.method)
    with torch.device("meta"):
        models.build(num_classes=facts.num_classes, image_shape=facts.image_shape, **recipe.model)
    assert tomllib.loads(dumps(recipe.as_dict())) == recipe.as_dict()


def test_the_published_schedules() -> None:
    small = load("cifar10/radius-0.25")
    assert (small.train.epochs, small.train.lr) == (200, 0.01)
    assert small.train.milestones == (100, 150)
    assert (small.method["weight"], small.method["from_epoch"]) == (4.0, 100)
    for data in ("imagenet", "places365"):
        large = load(f"{data}/radius-1.00")
        assert (large.train.epochs, large.train.lr) == (120, 0.01)
        assert large.train.milestones == (30, 60, 90)
        assert (large.method["weight"], large.method["from_epoch"]) == (0.5, 30)
