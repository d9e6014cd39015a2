from pathlib import Path

import pytest

from covprop.errors import InvalidInput
from covprop.train.length import at_length, never_begins
from covprop.train.recipe import load, shipped


def test_phases_scale_with_the_length() -> None:
    recipe = load("cifar10/radius-0.25", at_length("cifar10/radius-0.25", 20))
    assert (recipe.train.epochs, recipe.train.milestones) == (20, (10, 15))
    assert recipe.method["from_epoch"] == 10


def test_every_phase_scales_and_stays_within_the_run(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(
        '[data]\nname = "digits"\n[model]\nname = "lenet"\n[noise]\nsigma = 0.25\n'
        '[method]\nname = "smoothadv"\nwarmup = 8\n'
        '[weighting]\nname = "radius"\nfrom_epoch = 30\n'
        '[train]\nepochs = 40\nschedule = "linear"\nmilestones = [1, 20, 39]\ndecay_from = 20\n'
    )
    assert at_length(str(file), 10) == [
        "train.epochs=10",
        "train.decay_from=5",
        "train.milestones=[1, 5]",
        "method.warmup=2",
        "weighting.from_epoch=8",
    ]


def test_what_is_set_by_hand_stays(tmp_path: Path) -> None:
    given = ["train.milestones=[3]", "method=macer", "method.from_epoch=40"]
    changes = at_length("cifar10/radius-0.25", 20, given)
    assert changes == ["train.epochs=20"]
    recipe = load("cifar10/radius-0.25", [*given, *changes])
    assert (recipe.train.milestones, recipe.method["from_epoch"]) == ((3,), 40)
    changes = at_length("cifar10/radius-0.25", 20, ["method=macer"])
    assert not any("from_epoch" in change for change in changes)  # that of the method replaced
    with pytest.raises(InvalidInput, match="two lengths"):
        at_length("cifar10/radius-0.25", 20, ["train.epochs=10"])


@pytest.mark.parametrize("recipe", [name for name in shipped() if name.startswith("noisy/")])
def test_every_recipe_for_wrong_labels_goes_through_its_phases(recipe: str) -> None:
    whole, short = load(recipe), load(recipe, at_length(recipe, 20))
    assert short.train.epochs == 20
    assert short.train.decay_from == round(20 * whole.train.decay_from / whole.train.epochs)
    for key, value in whole.method.items():
        if key in ("from_epoch", "refresh", "pretrain", "layer", "ramp") and value:
            assert short.method[key] == max(1, round(20 * value / whole.train.epochs))
        else:
            assert short.method[key] == value


@pytest.mark.parametrize(
    ("name", "phases"),
    [
        ("coteaching", {"ramp": 1}),
        ("smodel", {"pretrain": 3}),
        ("truncated", {"from_epoch": 4, "refresh": 1}),
        ("radius-layer", {"layer": 3, "from_epoch": 6, "refresh": 1}),
        ("radius-label", {"layer": 0, "from_epoch": 3}),
    ],
)
def test_the_phases_of_methods_for_wrong_labels_scale(name: str, phases: dict[str, int]) -> None:
    whole = f"noisy/cifar10/{name}-pair-0.45"
    recipe = load(whole, at_length(whole, 20))
    assert (recipe.train.epochs, recipe.train.decay_from) == (20, 8)
    assert {key: recipe.method[key] for key in phases} == phases


@pytest.mark.parametrize("recipe", [name for name in shipped() if name.startswith("noisy/digits/")])
def test_every_recipe_for_wrong_labels_has_a_shortest_run(recipe: str) -> None:
    """And of two epochs, in which the phases keep their order."""
    for epochs in (1, 2):
        method = load(recipe, at_length(recipe, epochs)).method
        assert method.get("refresh", 1) >= 1
        assert method.get("from_epoch", 0) >= method.get("layer", 0) >= ("-layer-" in recipe)


def test_every_phase_begins_in_the_shortest_run(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(
        '[data]\nname = "digits"\n[model]\nname = "lenet"\n[noise]\nsigma = 0.25\n'
        '[method]\nname = "consistency"\nfrom_epoch = 39\n'
        '[train]\nepochs = 40\nschedule = "linear"\ndecay_from = 39\nwarmup_epochs = 2.0\n'
    )
    assert never_begins(load(str(file), ["train.epochs=40"])) == []
    recipe = load(str(file), at_length(str(file), 1))
    assert (recipe.method["from_epoch"], recipe.train.decay_from) == (0, 0)
    assert recipe.train.warmup_epochs == 0.05
    assert load(str(file), at_length(str(file), 20)).train.warmup_epochs == 2.0
    assert load(str(file), at_length(str(file), 2)).train.warmup_epochs == 0.1


def test_a_part_that_never_begins_is_named() -> None:
    sets = ["train.epochs=3", "method.from_epoch=2", "weighting=radius"]
    recipe = load("digits/macer-0.25", [*sets, "weighting.from_epoch=3"])
    (said,) = never_begins(recipe)
    assert said.startswith("weighting.from_epoch = 3 is not within the 3 epochs")
    recipe = load("digits/macer-0.25", [*sets, "method.from_epoch=3"])
    (said,) = never_begins(recipe)
    assert "that part of macer never begins" in said
