"""What is known of the runs of a wave."""

import json
from pathlib import Path
from types import ModuleType

import pytest
from certifications import add_estimates, draw_rows
from wave_runs import acr, add_run, lines


def test_the_price_of_an_epoch_alone_wins(make: ModuleType, tmp_path: Path) -> None:
    wave = tmp_path / "wave"
    add_run(wave, "a", 0)
    (wave / "timing.tsv").write_text("job\tseconds_per_epoch\na-5epochs\t0.5\n")
    assert lines(make.table("wave"), "a`")[0][8] == "1.5 s"  # three epochs


def test_a_run_certified_in_two_ways_is_two_rows_of_the_table_only(
    make: ModuleType, tmp_path: Path
) -> None:
    log = add_run(tmp_path / "wave", "a", 0)
    meta = json.loads(log.with_suffix(".json").read_text())
    (log.parent / "certify_fixed.json").write_text(json.dumps(meta | {"n": 5000}))
    log.with_name("certify_fixed.tsv").write_text(
        "\n".join(log.read_text().splitlines()[:11]) + "\n"
    )
    rows = lines(make.table("wave"), "a`")
    assert sorted(row[-2:] for row in rows) == [["10", "5,000"], ["40", "1,000"]]
    assert len(lines(make.log("wave"), "a`")) == 1


def test_a_run_on_more_images_has_a_row_on_those_of_all_as_well(
    make: ModuleType, tmp_path: Path
) -> None:
    wave = tmp_path / "mnist-0.25"
    for seed in (0, 1):  # every other image of those that the third has
        log = add_run(wave, "a", seed)
        (head, *rows), journal = (
            file.read_text().splitlines(keepends=True)
            for file in (log, log.with_suffix(".rows.jsonl"))
        )
        log.write_text("".join([head, *rows[::2]]))
        log.with_suffix(".rows.jsonl").write_text("".join(journal[::2]))
    add_estimates(add_run(wave, "a", 2), {"linearized": {20 * i: 0.1 * i for i in range(40)}})
    shown = {row[10]: row for row in lines(make.table("mnist-0.25"), "a`")}

    def on(seed: int, images: slice) -> float:
        rows = draw_rows(seed, 0.25)[images]
        return sum(r["correct"] * r["radius"] for r in rows) / len(rows)

    few = sum(on(seed, slice(0, None, 2)) for seed in (1, 2, 3)) / 3
    assert shown.keys() == {"20", "40"}
    assert shown["20"][1].startswith(f"{few:.3f} ± ")
    assert shown["20"][2] == "3"
    assert shown["40"][1].startswith(f"{acr(3):.3f} ± ")
    assert shown["40"][2] == "1"
    (cell,) = (row[1] for row in lines(make.overview("a"), "a`"))
    assert cell.startswith(f"{few:.3f} ± ")
    (truth,) = lines(make.truth("mnist-0.25"), "a`")  # of the images of all
    assert truth[3] == f"{sum(0.1 * i for i in range(0, 40, 2)) / 20:.3f}"


def test_changes_are_those_that_the_wave_makes_now(make: ModuleType, tmp_path: Path) -> None:
    """MNIST's wave sets λ and rate: the recipe has others now. A job it lacks stays as it ran."""
    for job in ("consistency", "gone"):
        add_run(tmp_path / "mnist-0.25", job, 0, recipe="mnist/minutes/consistency-0.25")
    rows = lines(make.table("mnist-0.25"), "")
    names = {row[0] for row in rows}
    shown = "`consistency` (`method.weight=10.0`, `train.lr=0.02`)"
    assert names == {shown, "`gone` (`train.lr=0.2`)"}


def test_a_length_in_a_name_is_no_other_job(make: ModuleType, tmp_path: Path) -> None:
    """The wave has `late` with less noise, in one length, and `late-27epochs` with all of it."""
    wave, recipe = tmp_path / "cifar10-0.25", "cifar10/minutes/late-0.25"
    add_run(wave, "late-27epochs", 0, recipe=recipe, epochs=27, set=[])
    assert lines(make.table("cifar10-0.25"), "")[0][0] == "`late-27epochs`"


@pytest.mark.parametrize(("lr", "changed"), [(0.05, False), (0.02, True)])
def test_what_a_run_changed_may_have_a_recipe_of_its_own_now(
    make: ModuleType, tmp_path: Path, lr: float, changed: bool
) -> None:
    """The job of the wave has `gaussian-muon-0.25`; another rate than there is still a change."""
    wave, recipe = tmp_path / "cifar10-0.25", "cifar10/minutes/gaussian-0.25"
    muon = ["train.optimizer=muon", "train.weight_decay=0.05", "train.decay_all=false"]
    made = [*muon, f"train.lr={lr}", "train.epochs=24", "train.seed=0"]
    add_run(wave, "gaussian-muon", 0, recipe=recipe, epochs=24, set=made)
    (label,) = (row[0] for row in lines(make.table("cifar10-0.25"), ""))
    assert (label != "`gaussian-muon`") == changed
    assert ("`train.lr=0.02`" in label) == changed
