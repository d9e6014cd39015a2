"""Facts of the data meet the recipe."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from covprop import data, methods
from covprop.errors import CovpropError, InvalidInput
from covprop.train import Recipe, train
from covprop.train.distributed import World
from covprop.train.options import LabelOptions, NoiseOptions
from covprop.train.setup import (
    build_method,
    build_model,
    check_batch,
    claimed,
    try_model,
    with_facts,
)

Make = Callable[..., Recipe]


@pytest.mark.parametrize("recipe", ["digits/gaussian-0.25", Path("my.toml")])
def test_a_recipe_that_is_not_loaded_yet(tmp_path: Path, recipe: Any) -> None:
    with pytest.raises(
        InvalidInput, match=r"the recipe is a \w+, '.*'; load it first, .*train\.lo"
    ):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_facts_are_filled_in(tiny: Make) -> None:
    images = data.load("digits", "train")
    options = with_facts(tiny(), images).data
    assert (options.num_classes, options.image_shape) == (10, (1, 8, 8))
    assert (options.mean, options.std) == (images.mean, images.std)


def test_own_statistics_win_and_can_be_switched_off(tiny: Make) -> None:
    images, recipe = data.load("digits", "train"), tiny()
    own = dataclasses.replace(recipe.data, mean=(0.1,), std=(0.2,))
    assert with_facts(dataclasses.replace(recipe, data=own), images).data.mean == (0.1,)
    none = dataclasses.replace(recipe.data, mean=())
    assert (
        with_facts(dataclasses.replace(recipe, data=none), images).data.mean == ()
    )  # refused later
    off = dataclasses.replace(own, normalize=False)
    facts = with_facts(dataclasses.replace(recipe, data=off), images)
    assert facts.data.mean is None
    assert not any(key.startswith("0.mean") for key in build_model(facts).state_dict())


def test_facts_that_contradict_the_data(tiny: Make) -> None:
    recipe = tiny()
    wrong = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, num_classes=7))
    with pytest.raises(InvalidInput, match=r"data\.num_classes is 7 in the recipe, but 10"):
        with_facts(wrong, data.load("digits", "train"))


def test_a_batch_must_split_evenly(tiny: Make) -> None:
    with pytest.raises(InvalidInput, match="over 3 processes; use 198"):
        check_batch(tiny(), data.load("digits", "train"), World(0, 3, torch.device("cpu")))


def test_seeds_choose_the_first_weights(tiny: Make) -> None:
    images = data.load("digits", "train")
    nets = [build_model(with_facts(tiny(seed=seed), images)) for seed in (0, 0, 1)]
    one, same, other = (net.state_dict()["1.conv1.weight"] for net in nets)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_weights_need_a_radius_whatever_the_method(tiny: Make) -> None:
    images, cpu = data.load("digits", "train"), torch.device("cpu")
    recipe = with_facts(tiny(weighting={"name": "radius", "high": 3.0}), images)
    method, weights = build_method(recipe, len(images), cpu)
    assert isinstance(method, methods.WithRadius)
    assert weights is not None
    assert (weights.high, len(weights.radius)) == (3.0, 1437)
    plain, none = build_method(with_facts(tiny(), images), len(images), cpu)
    assert isinstance(plain, methods.Gaussian)
    assert none is None


def test_training_draws_its_share_of_the_noise(tiny: Make) -> None:
    images, cpu = data.load("digits", "train"), torch.device("cpu")
    recipe = dataclasses.replace(tiny(), noise=NoiseOptions(sigma=0.4, share=0.75))
    recipe = with_facts(recipe, images)
    method, _ = build_method(recipe, len(images), cpu)
    assert isinstance(method, methods.Gaussian)
    assert method.sigma == pytest.approx(0.3)
    assert recipe.noise.sigma == 0.4  # what it is certified with


def test_one_trainer_a_folder(tmp_path: Path, tiny: Make) -> None:
    here = World(0, 1, torch.device("cpu"))
    with claimed(tmp_path / "run", tiny(), False, here, None):
        assert (tmp_path / "run" / "config.toml").exists()
    with (
        pytest.raises(CovpropError, match="unset"),
        claimed(tmp_path / "run", tiny(weighting={"name": "radius"}), False, here, None),
    ):
        pass
    with claimed(tmp_path / "run", tiny(), False, here, None):  # the refusal let go of the folder
        pass


def test_a_refused_recipe_keeps_no_fresh_folder(tmp_path: Path, tiny: Make) -> None:
    here, out = World(0, 1, torch.device("cpu")), tmp_path / "run"

    def refused() -> None:
        with claimed(out, tiny(), False, here, None):
            (out / "labels.tsv").write_text("of the refused recipe")
            raise InvalidInput("mend it")

    with pytest.raises(InvalidInput, match="mend it"):
        refused()
    assert not out.exists()
    with claimed(out, tiny(seed=1), False, here, None):  # mended, it is no other run
        (out / "metrics.jsonl").write_text("a row")
    with pytest.raises(InvalidInput, match=r"train\.seed is 1"):
        claimed(out, tiny(), False, here, None).__enter__()
    assert (out / "config.toml").exists()


def test_a_refused_recipe_removes_no_file_that_was_there(tmp_path: Path, tiny: Make) -> None:
    here, out = World(0, 1, torch.device("cpu")), tmp_path / "run"
    out.mkdir()
    (out / "labels.tsv").write_text("made by hand")
    with (
        pytest.raises(InvalidInput, match="mend it"),
        claimed(out, tiny(), False, here, None),
    ):
        raise InvalidInput("mend it")
    assert [path.name for path in out.iterdir() if path.name != ".lock"] == ["labels.tsv"]
    assert (out / "labels.tsv").read_text() == "made by hand"


def test_a_run_that_failed_before_its_first_row_keeps_no_fresh_folder(
    tmp_path: Path, tiny: Make
) -> None:
    """As when the first batch does not fit into memory: a smaller one is then no other run."""
    here, out = World(0, 1, torch.device("cpu")), tmp_path / "run"

    def failing(rows: str) -> None:
        with claimed(out, tiny(), False, here, None):
            (out / "metrics.jsonl").write_text(rows)
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        failing("")
    assert not out.exists()
    with pytest.raises(RuntimeError, match="out of memory"):
        failing("a row")
    assert (out / "config.toml").exists()
    assert (out / "metrics.jsonl").read_text() == "a row"


OWN = """
from torch import nn

def linear(inputs=64, outputs=10):
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, outputs))

def frozen():
    return linear().requires_grad_(False)

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = linear()

    def forward(self, x):
        return self.net(x), x

class Quits(Two):
    def forward(self, x):
        raise SystemExit(0)

class Centred(Two):
    def forward(self, x):
        h = self.net(x)
        return h - h.mean(0)

class CentredAfterANorm(Two):
    def forward(self, x):
        h = nn.functional.instance_norm(x)
        return self.net(h - h.mean(0))

class Shared(Two):
    def forward(self, x):
        return self.net(x / x.shape[0])

def unkept():
    return nn.Sequential(nn.BatchNorm2d(1, track_running_stats=False), linear())

def probable():
    return nn.Sequential(linear(), nn.Softmax(1))

def kept():
    return nn.Sequential(nn.BatchNorm2d(1), nn.Dropout(), linear())
"""


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"name": "Quits"}, "fails on an image of 1×8×8 with SystemExit: 0"),
        ({"name": "linear", "inputs": 65}, "fails on an image of 1×8×8 with RuntimeError: mat1"),
        ({"name": "linear", "outputs": 9}, r"returns 9 logits for an image, but .* 10 classes"),
        ({"name": "linear", "outputs": 11}, r"returns 11 logits for an image, but .* 10 classes"),
        ({"name": "frozen"}, r'Model ".*:frozen" has no parameter to train'),
        (
            {"name": "Two"},
            r'Model ".*:Two" must return one tensor of logits .* a batch of 1 it returned a tuple',
        ),
        ({"name": "Centred"}, r'Model ".*:Centred" answers an image by what else is in the batch'),
        ({"name": "CentredAfterANorm"}, "answers an image by what else is in the batch"),
        ({"name": "Shared"}, "or by how many images are, so that nothing could be certified"),
        ({"name": "probable"}, r'Model ".*:probable" returns probabilities, .* the softmax'),
        ({"name": "unkept"}, "the batch norm 1.0 keeps no statistics, so an image's logits depend"),
    ],
)
def test_an_own_model_that_does_not_fit_the_data(
    tmp_path: Path, tiny: Make, model: dict[str, Any], message: str
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    model["name"] = f"{tmp_path / 'own.py'}:{model['name']}"
    with pytest.raises(InvalidInput, match=message):
        train(tiny(model=model), tmp_path / "run")
    assert not (tmp_path / "run" / "config.toml").exists()


def test_what_is_refused_as_a_classifier_may_find_wrong_labels(tmp_path: Path, tiny: Make) -> None:
    (tmp_path / "own.py").write_text(OWN)
    own = [tiny(model={"name": f"{tmp_path / 'own.py'}:{name}"}) for name in ("kept", "Centred")]
    facts = with_facts(own[0], data.load("digits", "train")).data
    for recipe, labels in ((own[0], None), (own[1], LabelOptions("none"))):
        recipe = dataclasses.replace(recipe, data=facts, labels=labels)
        model = build_model(recipe)
        try_model(model, recipe, torch.device("cpu"))
        assert all(module.training for module in model.modules())


def test_one_class_is_said_of_the_data(tiny: Make) -> None:
    images = data.load("digits", "train")
    alone = dataclasses.replace(images, labels=images.labels * 0, classes=("0",))
    with pytest.raises(InvalidInput, match="digits has one class only"):
        with_facts(tiny(), alone)
