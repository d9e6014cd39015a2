import csv
import io
import json
import math
from pathlib import Path

import pytest
from certifications import add_estimates, draw_rows, make_planned_run, make_run, tsv
from rich.console import Console

from covprop.report.cells import duration
from covprop.report.read import read
from covprop.report.summary import Summary, summarize
from covprop.report.tables import (
    agreement_columns,
    columns,
    comma_separated,
    estimates_csv,
    latex,
    markdown,
    print_table,
    tables,
)

Made = tuple[tuple[float, ...], list[Summary]]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    log = make_run(tmp_path / "a_1 & <b> | 50%", 1, 0.25, "macer")
    add_estimates(log, {"shared": {r["idx"]: r["radius"] / 2 for r in draw_rows(1, 0.25)}})
    make_run(tmp_path / "plain", 2, 0.5)
    return summarize(read([tmp_path])[0])


def printed(made: Made, width: int) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    for table, note in tables(*made):
        print_table(table, note, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_durations() -> None:
    assert [duration(s) for s in (42.3, 754, 8100, 59.96, 3599.7)] == [
        "42.3 s",
        "12 min 34 s",
        "2 h 15 min",
        "1 min 00 s",
        "1 h 00 min",
    ]


def test_the_terminal_shows_every_number_whatever_its_width(made: Made) -> None:
    wide, narrow = printed(made, 200), printed(made, 60)
    assert all(len(line) <= 60 for line in narrow.splitlines())
    for column in columns(*made)[1:]:
        assert column.title in wide
        assert column.title in narrow
        for cell in column.cells:
            assert cell.text in wide
            assert cell.text in narrow
            assert cell.plus_minus in narrow
    assert wide.count("ACR") < narrow.count("\nrun") + 2
    assert "4.5 s" in wide
    assert "certify nothing" in " ".join(narrow.split())


def test_columns_without_content_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "log.tsv").write_text(tsv(draw_rows(1, 0.25)))
    titles = [c.title for c in columns(*summarize(read([tmp_path])[0]))]
    assert titles[:3] == ["run", "ACR", "r=0"]
    assert titles[-2:] == ["abstain %", "images"]


def test_no_interval_where_the_bootstrap_has_none(tmp_path: Path) -> None:
    rows = draw_rows(1, 0.25)
    for row in rows:
        row |= {"predict": row["label"], "correct": 1, "radius": 0.1}
    (tmp_path / "log.tsv").write_text(tsv(rows))
    table = {c.title: c.cells[0] for c in columns(*summarize(read([tmp_path])[0]))}
    assert (table["r=0"].text, table["r=0"].plus_minus) == ("100.0", "")


def test_markdown_keeps_its_shape_with_any_name(made: Made) -> None:
    lines = markdown(columns(*made), "note").splitlines()
    assert lines[0].startswith("| run | data | method | σ | ACR |")
    plain = [line.replace("\\|", "") for line in lines[:4]]
    assert len({line.count("|") for line in plain}) == 1
    assert r"a_1 \& \<b\> \| 50%" in lines[2]
    assert f"{made[1][0].acr.value:.3f} ±{made[1][0].acr.half:.3f}" in lines[2]
    assert lines[-1] == "note"


def test_latex_is_escaped_and_complete(made: Made) -> None:
    text = latex(columns(*made), "a note")
    assert r"a\_1 \& \textless{}b\textgreater{} \textbar{} 50\%" in text
    body = text.split(r"\midrule")[1].split(r"\bottomrule")[0].strip().splitlines()
    assert len(body) == 2
    width = len(columns(*made))
    assert all(row.replace(r"\&", "").count("&") == width - 1 for row in body)
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1
    assert "$r=0.25$" in text
    assert "σ" not in text.split("\n", 1)[1]


def test_csv_has_full_precision_and_both_ends(made: Made) -> None:
    radii, summaries = made
    rows = list(csv.DictReader(io.StringIO(comma_separated(radii, summaries))))
    assert [row["name"] for row in rows] == ["a_1 & <b> | 50%", "plain"]
    for row, summary in zip(rows, summaries, strict=True):
        assert float(row["acr"]) == summary.acr.value
        assert float(row["acr_low"]) == summary.acr.low
        assert float(row["certified_0.25_high"]) == summary.certified[1].high
        assert float(row["sigma"]) == summary.certification.sigma
        assert float(row["train_seconds"]) == 4.5
        shares = [float(value) for key, value in row.items() if key[:6] in ("p_a_0.", "p_a_wr")]
        assert sum(shares) + float(row["p_a_abstained"]) == pytest.approx(1)


def test_estimates_stand_beside_certificates_image_by_image(made: Made) -> None:
    rows = list(csv.DictReader(io.StringIO(estimates_csv(made[1]))))
    drawn = draw_rows(1, 0.25)
    assert [int(r["idx"]) for r in rows] == [r["idx"] for r in drawn]
    for row, true in zip(rows, drawn, strict=True):
        assert row["estimator"] == "shared"
        assert float(row["certified_radius"]) == true["radius"]
        assert float(row["estimated_radius"]) == true["radius"] / 2


def test_no_estimate_is_called_certified(made: Made) -> None:
    _, _, (table, note) = tables(*made)
    titles = [c.title for c in table]
    assert "mean estimated" in titles
    assert "certify nothing" in note
    assert not any("estimated" in c.title for c in columns(*made))


def test_the_mean_beside_estimates_is_not_taken_for_the_acr(made: Made) -> None:
    rows = draw_rows(1, 0.25)
    _, _, (table, note) = tables(*made)
    (mean,) = (c for c in table if c.title == "mean certified, right or wrong")
    assert mean.cells[0].text == f"{round(sum(r['radius'] for r in rows) / len(rows), 3):g}"
    acr = sum(r["radius"] * r["correct"] for r in rows) / len(rows)
    assert mean.cells[0].value != pytest.approx(acr, abs=1e-3)
    assert "counts as 0 in the ACR" in note


def test_an_estimator_without_one_finite_radius_has_no_mean(tmp_path: Path) -> None:
    log = make_run(tmp_path / "dead")
    add_estimates(log, {"shared": {r["idx"]: math.inf for r in draw_rows(1, 0.25)}})
    found = agreement_columns(summarize(read([tmp_path])[0])[1])
    assert [c.cells[0].text for c in found] == ["dead", "shared", "0", "–", "–", "–", "–"]


def test_each_row_tells_its_samples(tmp_path: Path) -> None:
    fixed, sequential = make_run(tmp_path / "a", 1), make_run(tmp_path / "b", 2)
    facts = {"sigma": 0.25, "n": 100_000, "alpha": 0.001, "mode": "hard"}
    fixed.with_suffix(".json").write_text(json.dumps(facts))
    facts["mode"] = "hard, sequential to within 0.05"
    sequential.with_suffix(".json").write_text(json.dumps(facts))
    (tmp_path / "log.tsv").write_text(tsv(draw_rows(1, 0.25)))
    radii, summaries = summarize(read([tmp_path])[0])
    table = {c.title: [cell.text for cell in c.cells] for c in columns(radii, summaries)}
    # The journals of both say 1,000 samples for every image.
    assert sorted(table["samples"]) == ["1,000 of 100,000, δ 0.05", "100,000", "–"]
    assert sorted(table["α"]) == ["0.001", "0.001", "–"]
    assert "samples" in tables(radii, summaries)[0][1]


def test_an_unfinished_run_is_marked(tmp_path: Path) -> None:
    make_planned_run(tmp_path / "done", 3)
    make_planned_run(tmp_path / "unfinished", 400)
    radii, summaries = summarize(read([tmp_path])[0])
    training = next(c for c in columns(radii, summaries) if c.title == "training")
    assert [cell.text for cell in training.cells] == ["4.5 s", "4.5 s, 3 of 400 epochs"]
    assert [cell.value for cell in training.cells] == [4.5, 4.5]
    text = markdown(*tables(radii, summaries)[0])
    assert [line.split(" | ")[-1] for line in text.splitlines() if line.startswith("| unf")] == [
        "4.5 s, 3 of 400 epochs |"
    ]


def test_an_unfinished_run_without_its_time_is_marked_too(tmp_path: Path) -> None:
    log = make_planned_run(tmp_path / "a", 400)
    log.with_name("metrics.jsonl").write_text('{"epoch": 62}\n')
    radii, summaries = summarize(read([log])[0])
    assert columns(radii, summaries)[-1].cells[0].text == "62 of 400 epochs"
