"""Every shipped recipe is complete, valid and what the script that wrote it says."""

import importlib.util
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import torch

from covprop import models
from covprop.data import DATASETS
from covprop.methods import build as build_method
from covprop.noisy import METHODS as NOISY
from covprop.noisy import Task
from covprop.noisy import build as build_noisy
from covprop.train import load, shipped
from covprop.train.toml import dumps

FOLDER = Path(__file__).parent.parent / "recipes"


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_recipes", FOLDER / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(FOLDER))  # it has other parts beside it
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(FOLDER))
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
    recipe = load(name)
    facts = DATASETS[recipe.data.name]

    def network() -> torch.nn.Module:
        shape = facts.image_shape
        with torch.device("meta"):
            return models.build(num_classes=facts.num_classes, image_shape=shape, **recipe.model)

    if recipe.labels is None:
        assert f"covprop train {name}" in first
        assert name.endswith(f"-{recipe.noise.sigma:.2f}")
        build_method(sigma=recipe.noise.sigma, input_shape=facts.image_shape, **recipe.method)
        network()
    else:
        assert f"covprop noisy {name}" in first
        assert name.endswith(f"-{recipe.labels.name}-{recipe.labels.rate:.2f}")
        sizes = (1000, facts.num_classes, 0.45, recipe.noise.sigma, facts.image_shape)
        build_noisy(task=Task(*sizes, new_network=network), **recipe.method)
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


def test_the_grid_of_noisy_labels() -> None:
    """Every method on every set, on one network, for as many epochs."""
    for data in ("digits", "mnist", "fashion-mnist", "cifar10", "cifar100"):
        names = [name for name in shipped() if name.startswith(f"noisy/{data}/")]
        grid = [load(name) for name in names if "radius-paper" not in name]
        assert {recipe.method["name"] for recipe in grid} == set(NOISY)
        assert {recipe.method["end"] for recipe in grid if "end" in recipe.method} == {
            *("largest", "smallest")
        }
        for recipe in grid[1:]:
            for part in ("data", "labels", "model", "train"):
                assert getattr(recipe, part) == getattr(grid[0], part)
            layered = recipe.method.get("layer", 0) > 0
            assert recipe.noise.sigma == (0.02 if layered else grid[0].noise.sigma)
    train = load("noisy/cifar10/coteaching-pair-0.45").train
    assert (train.epochs, train.decay_from, train.lr, train.late_beta1) == (200, 80, 0.001, 0.1)
    assert load("noisy/cifar100/plain-pair-0.45").train.decay_from == 100
    paper = load("noisy/cifar10/radius-paper-pair-0.45")
    assert (paper.train.lr, paper.train.milestones) == (0.01, (30, 60, 90))
    assert (paper.method["from_epoch"], paper.method["drop"]) == (60, 0.1)
