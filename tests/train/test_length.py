from pathlib import Path

from covprop.train.length import at_length
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
