"""Reports on logs whose wrong guesses were not bounded: the same table, and no false zeros."""

import csv
import io
from pathlib import Path

import pytest
from certifications import add_estimates, draw_rows, make_run, skip_wrong

from covprop.report.cells import Cell
from covprop.report.page import render
from covprop.report.read import read
from covprop.report.seeds import by_recipe
from covprop.report.summary import Summary, summarize
from covprop.report.tables import columns, comma_separated, estimates_csv, latex, markdown, tables

Made = tuple[tuple[float, ...], list[Summary]]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """The same run twice: certified in full, and without the wrong guesses."""
    for name in ("full", "short"):
        log = make_run(tmp_path / name)
        add_estimates(log, {"shared": {r["idx"]: 1.0 + r["idx"] for r in draw_rows(1, 0.25)}})
    skip_wrong(log)
    return summarize(read([tmp_path])[0])


def cell(made: Made, title: str, row: int) -> Cell:
    return next(c for c in columns(*made) if c.title == title).cells[row]


def test_acr_and_certified_accuracy_are_those_of_the_full_run(made: Made) -> None:
    full, short = made[1]
    assert short.acr == full.acr
    assert short.certified == full.certified
    for a, b in zip(full.curve, short.curve, strict=True):
        assert a.tolist() == b.tolist()
    assert full.p_shares is not None
    assert short.p_shares is not None
    assert short.p_shares[2:] == full.p_shares[2:]
    assert sum(short.p_shares) == pytest.approx(1)


@pytest.mark.parametrize("journal", [True, False])
def test_which_were_skipped_is_seen_in_the_log_alone(tmp_path: Path, journal: bool) -> None:
    log = make_run(tmp_path / "run")
    rows = skip_wrong(log)
    if not journal:
        for suffix in (".rows.jsonl", ".json"):
            log.with_suffix(suffix).unlink()
    (c,), _ = read([log])
    assert c.rows.skipped.tolist() == [row["n"] == 0 for row in rows]
    assert 2 < c.rows.skipped.sum() < 20
    assert c.p_lower is not None
    assert not (c.p_lower[c.rows.skipped] >= 0.5).any()
    if journal:
        assert c.samples == sum(row["n"] for row in rows) / len(rows) < 1000


def test_abstentions_are_a_lower_bound_and_samples_a_mean(made: Made) -> None:
    skipped = made[1][1].certification.rows.skipped
    assert "≥" not in cell(made, "abstain %", 0).text
    bound = cell(made, "abstain %", 1)
    assert bound.text == f"≥ {100 * made[1][1].abstain.value:.1f}"
    assert bound.plus_minus == ""
    assert 0 < made[1][1].abstain.value < made[1][0].abstain.value
    assert cell(made, "samples", 0).text == "1,000"
    assert cell(made, "samples", 1).text == f"{1000 * (~skipped).mean():,.0f} of 1,000"
    table, note = tables(*made)[0]
    assert "which of them would have abstained is unknown" in note
    assert "≥" in markdown(table, note)
    assert r"$\geq$" in latex(table, note)
    assert "≥" not in latex(table, "")
    assert "not bounded" not in " ".join(note for _, note in tables(made[0], made[1][:1]))
    rows = list(csv.DictReader(io.StringIO(comma_separated(*made))))
    assert [int(row["not_bounded"]) for row in rows] == [0, skipped.sum()]


def test_an_estimate_is_not_set_against_a_radius_that_is_none(made: Made) -> None:
    full, short = (summary.agreements[0] for summary in made[1])
    skipped = made[1][1].certification.rows.skipped
    assert short.certified.tolist() == full.certified[~skipped].tolist()
    assert short.estimated.tolist() == full.estimated[~skipped].tolist()
    assert set(short.kind.tolist()) == {1, 2}
    rows = [r for r in csv.DictReader(io.StringIO(estimates_csv(made[1]))) if r["name"] == "short"]
    kept = made[1][1].certification.rows.idx[~skipped]
    assert [int(r["idx"]) for r in rows] == kept.tolist()
    assert "have no certified radius" in tables(*made)[-1][1]


def test_the_page_says_so(made: Made) -> None:
    text = render(*made)
    skipped = made[1][1].certification.rows.skipped.sum()
    assert text.count(f"{skipped} were not bounded") == 1
    assert "which of them would have abstained is unknown" in text
    assert "not bounded" not in render(made[0], made[1][:1])


def test_seeds_certified_either_way_are_one_recipe(tmp_path: Path) -> None:
    for seed in (1, 2):
        log = make_run(tmp_path / f"a-seed{seed}", seed)
        with log.with_name("config.toml").open("a") as file:
            file.write(f"\n[train]\nseed = {seed}\n")
    skip_wrong(log)
    (group,) = by_recipe(summarize(read([tmp_path])[0])[1])
    assert len(group.members) == 2
