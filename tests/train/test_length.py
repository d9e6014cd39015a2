from pathlib import Path

import pytest

from covprop.errors import InvalidInput
from covprop.train.length import at_length, never_begins
from covprop.train.recipe import load


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
    with pytest.raises(InvalidInput, match="list noisy"):
        at_length("noisy/digits/coteaching-pair-0.45", 20)


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
