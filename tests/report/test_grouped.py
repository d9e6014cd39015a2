import json
import statistics
from pathlib import Path

from certifications import make_run

from covprop.report.grouped import overview_columns
from covprop.report.read import read
from covprop.report.seeds import by_recipe
from covprop.report.summary import summarize
from covprop.report.tables import tables

DIGITS = ("digits, σ=0.25", "digits, σ=0.5", "digits, σ=1")


def acr(log: Path) -> float:
    rows = [json.loads(line) for line in log.with_suffix(".rows.jsonl").read_text().splitlines()]
    return statistics.fmean(row["radius"] if row["correct"] else 0.0 for row in rows)


def table_of(folder: Path) -> dict[str, dict[str, str]]:
    """Row name → column title → cell, with its ±."""
    _, summaries = summarize(read([folder])[0])
    names, *rest = overview_columns(by_recipe(summaries)) or [None]
    if names is None:
        return {}
    return {
        name.text: {c.title: f"{c.cells[i].text} {c.cells[i].plus_minus}".strip() for c in rest}
        for i, name in enumerate(names.cells)
    }


def test_rows_are_recipes_and_columns_data_and_noise(tmp_path: Path) -> None:
    low = make_run(tmp_path / "x/plain-0.25", 1, 0.25)
    high = make_run(tmp_path / "x/plain-1.00", 2, 1.0)
    make_run(tmp_path / "x/middle", 3, 0.5)
    make_run(tmp_path / "y/tuned-0.25-seed0", 4, 0.25)
    make_run(tmp_path / "y/tuned-0.50-seed0", 5, 0.5)
    found = table_of(tmp_path)
    assert list(found) == ["plain", "tuned"]  # `middle` is there once only
    assert {tuple(row) for row in found.values()} == {DIGITS}  # in the order of the noise
    plain = [cell.split(" ±")[0] for cell in found["plain"].values()]
    assert plain == [f"{acr(low):.3f}", "–", f"{acr(high):.3f}"]
    assert found["tuned"][DIGITS[2]] == "–"
    _, summaries = summarize(read([low])[0])
    assert found["plain"][DIGITS[0]].endswith(f"±{summaries[0].acr.half:.3f}")


def test_a_number_that_is_not_the_noise_is_part_of_the_name(tmp_path: Path) -> None:
    make_run(tmp_path / "rmax-0.25", 1, 0.25)
    make_run(tmp_path / "other/rmax-0.25", 2, 0.5)
    assert table_of(tmp_path) == {}
    make_run(tmp_path / "more/rmax-0.50", 3, 0.5)
    assert list(table_of(tmp_path)) == ["rmax"]


def test_seeds_are_one_cell_with_their_deviation(tmp_path: Path) -> None:
    values = []
    for seed in (1, 2, 3):
        log = make_run(tmp_path / f"a/plain-seed{seed}", seed)
        with log.with_name("config.toml").open("a") as file:
            file.write(f"\n[train]\nseed = {seed}\n")
        values.append(acr(log))
    make_run(tmp_path / "b/plain-seed1", 4, 0.5)  # its name alone is taken twice
    found = table_of(tmp_path)["plain"][DIGITS[0]]
    assert found == f"{statistics.mean(values):.3f} ±{statistics.stdev(values):.3f}"
    _, summaries = summarize(read([tmp_path])[0])
    assert [group.name for group in by_recipe(summaries)] == ["a/plain", "b/plain"]


def test_two_runs_for_one_cell_keep_their_folders(tmp_path: Path) -> None:
    logs = {
        (folder, sigma): make_run(tmp_path / folder / f"plain-{sigma}", k, sigma)
        for k, (folder, sigma) in enumerate((("a", 0.25), ("b", 0.25), ("a", 0.5), ("b", 0.5)), 1)
    }
    found = table_of(tmp_path)
    assert list(found) == ["a/plain", "b/plain"]
    for (folder, sigma), log in logs.items():
        assert found[f"{folder}/plain"][f"digits, σ={sigma}"].startswith(f"{acr(log):.3f}")


def test_the_report_has_it_only_where_it_says_something(tmp_path: Path) -> None:
    make_run(tmp_path / "plain-0.25", 1, 0.25)
    assert all(table[0].title != "ACR of" for table, _ in tables(*summarize(read([tmp_path])[0])))
    make_run(tmp_path / "plain-0.50", 2, 0.5)
    titles = [table[0].title for table, _ in tables(*summarize(read([tmp_path])[0]))]
    assert titles.count("ACR of") == 1


def test_a_name_is_never_empty(tmp_path: Path) -> None:
    make_run(tmp_path / "-0.25", 1, 0.25)
    make_run(tmp_path / "-0.50", 2, 0.5)
    assert table_of(tmp_path) == {}
