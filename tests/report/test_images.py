"""Runs of one data set on different images are told of; others are not."""

import shutil
from pathlib import Path

import pytest
from certifications import make_run

from covprop.report import summarize
from covprop.report.differences import comparable
from covprop.report.read import read
from covprop.report.seeds import by_recipe


def warned(folder: Path) -> list[str]:
    return [w for w in read([folder])[1] if "do not compare" in w]


def cut(log: Path, first: int, last: int) -> None:
    """Keep rows of a log, as if no other image had been chosen."""
    head, *rows = log.read_text().splitlines()
    log.write_text("\n".join([head, *rows[first:last], ""]))


def test_runs_on_the_same_images_compare(tmp_path: Path) -> None:
    for seed in (1, 2):
        make_run(tmp_path / f"a{seed}", seed)
    make_run(tmp_path / "b", 3, 0.5)
    assert warned(tmp_path) == []


@pytest.mark.parametrize(
    ("part", "said"),
    [((0, 20), "a1 and 1 more on 40, b on 20."), ((0, 39), "a1 and 1 more on 40, b on 39.")],
)
def test_a_run_on_fewer_images_does_not(tmp_path: Path, part: tuple[int, int], said: str) -> None:
    for name, seed in (("a1", 1), ("a2", 2), ("b", 3)):
        log = make_run(tmp_path / name, seed)
        cut(log, 0, 40)
    cut(log, *part)
    (warning,) = warned(tmp_path)
    assert warning.startswith("digits: not all runs were certified on the same images, so their")
    assert warning.endswith(said)


def test_as_many_images_may_be_others(tmp_path: Path) -> None:
    cut(make_run(tmp_path / "a", 1), 0, 30)
    cut(make_run(tmp_path / "b", 2), 10, 40)
    (warning,) = warned(tmp_path)
    assert warning.endswith("a on 30, b on 30 others.")


def test_another_data_set_or_split_is_another_column(tmp_path: Path) -> None:
    cut(make_run(tmp_path / "a", 1), 0, 30)
    log = make_run(tmp_path / "b", 2)
    config = log.with_name("config.toml")
    config.write_text(config.read_text().replace('"digits"', '"other"'))
    assert warned(tmp_path) == []


def test_bare_logs_of_other_labels_are_of_other_images(tmp_path: Path) -> None:
    log = make_run(tmp_path / "run", 1)
    (tmp_path / "bare").mkdir()
    for name in ("a.tsv", "b.tsv"):
        shutil.copy(log, tmp_path / "bare" / name)
    assert warned(tmp_path / "bare") == []
    head, *rows = [line.split("\t") for line in log.read_text().splitlines()]
    other = [[row[0], str(100 + int(row[1])), row[2], row[3], "0", row[5]] for row in rows]
    (tmp_path / "bare/b.tsv").write_text("\n".join("\t".join(row) for row in [head, *other]) + "\n")
    (warning,) = warned(tmp_path / "bare")
    assert warning.startswith("not all runs were certified on the same images")


def test_held_out_images_of_equal_numbers_may_be_others(tmp_path: Path) -> None:
    """Number 3 of 100 held-out images is not number 3 of 200: a paired comparison of the two was
    one of different images. No side-car of a registered set says how many were held out."""
    for name, labels in (("a", "0123"), ("b", "0246")):
        log = make_run(tmp_path / name, 1)
        log.with_suffix(".json").write_text('{"sigma": 0.25, "data": "digits", "split": "holdout"}')
        log.with_suffix(".rows.jsonl").unlink()
        head, *rows = (line.split("\t") for line in log.read_text().splitlines())
        own = [[str(i), label, label, "0.3", "1", rows[i][5]] for i, label in enumerate(labels)]
        log.write_text("".join("\t".join(row) + "\n" for row in [head, *own]))
    (warning,) = warned(tmp_path)
    assert warning.startswith("digits (holdout): not all runs were certified on the same images")
    groups = by_recipe(summarize(read([tmp_path])[0])[1])
    assert not comparable(*groups)
