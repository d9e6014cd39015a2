import json
import math
from pathlib import Path

import pytest
from certifications import add_estimates, make_run

from covprop.certify.bounds import best_lower, certified_radius, looks
from covprop.errors import InvalidInput
from covprop.report.sidecars import (
    most_certified,
    read_config,
    read_estimates,
    read_journal,
    read_json,
    read_jsonl,
    read_metrics,
    section,
)
from covprop.report.tsv import read_tsv


def test_absent_files_are_empty(tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    rows = read_tsv(make_run(tmp_path / "run"))
    assert read_config(absent) == ("", {})
    assert read_json(absent) == {}
    assert read_jsonl(absent) == []
    assert read_metrics(absent) == (None, None)
    assert read_estimates(absent, rows) == ({}, [])
    assert read_journal(absent, rows) == (None, [])


def test_a_plain_value_for_a_section_is_its_name() -> None:
    assert section({"model": "my_net.py:build"}, "model") == {"name": "my_net.py:build"}
    assert section({}, "model") == {}


def test_training_time_is_that_of_the_last_epoch_which_counts_all_before(tmp_path: Path) -> None:
    metrics = make_run(tmp_path).with_name("metrics.jsonl")
    assert read_metrics(metrics) == (4.5, 3)
    with metrics.open("a") as file:
        file.write('{"epoch": 4, "sec')  # killed while writing
    assert read_metrics(metrics) == (4.5, 3)


def test_journal_gives_unrounded_radii_in_the_order_of_the_log(tmp_path: Path) -> None:
    log = make_run(tmp_path)
    path = log.with_suffix(".rows.jsonl")
    lines = path.read_text().splitlines()
    path.write_text("\n".join(reversed(lines)) + "\n")
    rows = read_tsv(log)
    journal, warnings = read_journal(path, rows)
    assert journal is not None
    assert not warnings
    assert journal.radius.tolist() == [json.loads(line)["radius"] for line in lines]
    assert journal.p_lower.tolist() == [json.loads(line)["p_lower"] for line in lines]
    assert (journal.radius != rows.radius).any()


def test_journal_of_another_log_is_not_used(tmp_path: Path) -> None:
    log, other = make_run(tmp_path / "a", seed=1), make_run(tmp_path / "b", seed=2)
    journal, warnings = read_journal(other.with_suffix(".rows.jsonl"), read_tsv(log))
    assert journal is None
    assert "contradicts" in warnings[0]
    path = log.with_suffix(".rows.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[0]["predict"] += 1  # another class, though with the same radius
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_journal(path, read_tsv(log))[0] is None


def test_journal_that_lacks_a_row_is_not_used(tmp_path: Path) -> None:
    log = make_run(tmp_path)
    path = log.with_suffix(".rows.jsonl")
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    assert read_journal(path, read_tsv(log)) == (None, [])


def test_estimates_go_to_their_images(tmp_path: Path) -> None:
    log = make_run(tmp_path)
    add_estimates(log, {"shared": {40: 0.5, 0: 0.25, 7: 9.0}, "dense": {20: 0.125}})
    estimates, warnings = read_estimates(log.with_name("estimated.tsv"), read_tsv(log))
    assert not warnings
    assert estimates["shared"][[0, 2]].tolist() == [0.25, 0.5]
    assert math.isnan(estimates["shared"][1])
    assert estimates["dense"][1] == 0.125


def test_a_cut_line_of_estimates_is_left_out_with_a_warning(tmp_path: Path) -> None:
    log = make_run(tmp_path)
    path = log.with_name("estimated.tsv")
    path.write_text("idx\testimator\tradius\n0\tshared\t0.5\n20\tsha")
    estimates, warnings = read_estimates(path, read_tsv(log))
    assert estimates["shared"][0] == 0.5
    assert "cut off" in warnings[0]


def test_damaged_files_are_named(tmp_path: Path) -> None:
    rows = read_tsv(make_run(tmp_path / "run"))
    bad = tmp_path / "bad"
    for text, read in [
        ("[data", read_config),
        ("{", read_json),
        ("[1]", read_json),
        ("{\n{}\n", read_jsonl),
        ("idx\tradius\n", lambda path: read_estimates(path, rows)),
        ("idx\testimator\tradius\n0\tx\n1\tshared\t1\n", lambda path: read_estimates(path, rows)),
    ]:
        bad.write_text(text)
        with pytest.raises(InvalidInput, match=str(bad)):
            read(bad)


@pytest.mark.parametrize("n", [1, 9, 10, 100, 20_000, 10_000_000])
@pytest.mark.parametrize("soft", [False, True])
def test_the_largest_radius_is_that_of_a_certifier_all_of_whose_samples_agree(
    n: int, soft: bool
) -> None:
    meta = {"sigma": 0.25, "n": n, "alpha": 0.001, "mode": "soft" if soft else "hard"}
    truth = float(certified_radius(best_lower(1.0, n, 0.001, soft=soft), 0.25))
    assert most_certified(meta) == pytest.approx(truth, rel=1e-5)
    for sequential in (", sequential to within 0.05", ", sequential, at least 0.5, 1"):
        assert most_certified(meta | {"mode": meta["mode"] + sequential}) == most_certified(meta)
    plan = looks(n, 0.001, sequential=True)
    for size, alpha in zip(plan.sizes, plan.alphas, strict=True):
        reached = certified_radius(best_lower(1.0, size, alpha, soft=soft), 0.25)
        assert reached <= most_certified(meta) * (1 + 1e-5)


def test_the_largest_radius_is_unknown_where_a_fact_is() -> None:
    meta = {"sigma": 0.25, "n": 20_000, "alpha": 0.001, "mode": "hard"}
    assert most_certified(meta) < 1
    for key in meta:
        assert most_certified({k: v for k, v in meta.items() if k != key}) == math.inf
    for wrong in ({"n": 0}, {"n": "many"}, {"alpha": 1}, {"alpha": math.nan}, {"sigma": -1}):
        assert most_certified(meta | wrong) == math.inf
    assert most_certified(meta | {"mode": "another"}) == math.inf


@pytest.mark.parametrize(
    "text", ['{"n": 1' + 400 * "0" + "}", '{"n": ' + 5000 * "1" + "}", 9**5 * "["]
)
def test_numbers_and_nesting_beyond_all_bounds_are_no_json(tmp_path: Path, text: str) -> None:
    path = tmp_path / "odd.json"
    path.write_text(f"{text}\n{{}}\n")
    for read in (read_json, read_jsonl):
        with pytest.raises(InvalidInput, match="not valid JSON"):
            read(path)


def test_a_journal_row_that_numbers_no_image_is_passed_over(tmp_path: Path) -> None:
    log = make_run(tmp_path / "run")
    rows, path = read_tsv(log), log.with_suffix(".rows.jsonl")
    whole = read_journal(path, rows)[0]
    assert whole is not None
    path.write_text('{"idx": [1]}\n' + path.read_text())
    again = read_journal(path, rows)[0]
    assert again is not None
    assert (again.radius == whole.radius).all()
