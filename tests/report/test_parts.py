from pathlib import Path

import pytest
from certifications import draw_rows, make_run, tsv
from typer.testing import CliRunner

from covprop.cli import app
from covprop.report import summarize, write
from covprop.report.parts import MANY, headed_tables, parts
from covprop.report.read import read
from covprop.report.summary import Summary


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Thirteen runs: of σ = 0.25 in one folder, of σ = 1 in another, with names in common."""
    for seed in range(MANY - 4):
        make_run(tmp_path / "runs" / "low" / f"run {seed}", seed + 1, 0.25)
    for seed in range(5):
        make_run(tmp_path / "runs" / "deep" / "high & far" / f"run {seed}", seed + 1, 1.0)
    return tmp_path / "runs"


def all_of(folder: Path) -> tuple[tuple[float, ...], list[Summary]]:
    return summarize(read([folder])[0])


def test_each_folder_is_a_part_with_its_own_radii_and_short_names(tree: Path) -> None:
    radii, summaries = all_of(tree)
    found = {part.folder: part for part in parts(summaries)}
    assert list(found) == ["deep/high & far", "low"]
    assert [s.certification.name for s in found["low"].summaries] == [f"run {k}" for k in range(8)]
    for folder, part in found.items():
        alone_radii, alone = all_of(tree / folder)
        assert part.radii == alone_radii
        assert [s.acr for s in part.summaries] == [s.acr for s in alone]
    assert len(found["low"].radii) < len(found["deep/high & far"].radii) == len(radii)


def test_few_runs_or_one_folder_are_one_part(tree: Path, tmp_path: Path) -> None:
    _, summaries = all_of(tree)
    assert parts(summaries[1:]) == []  # twelve
    for seed in range(MANY + 1):
        (tmp_path / f"log{seed}.tsv").write_text(tsv(draw_rows(seed, 0.25)))
    logs = [tmp_path / f"log{seed}.tsv" for seed in range(MANY + 1)]
    assert parts(summarize(read(logs)[0])[1]) == []


def test_a_folder_that_holds_runs_and_folders_of_runs_is_a_part_too(tree: Path) -> None:
    make_run(tree / "own", 3)
    assert {part.folder for part in parts(all_of(tree)[1])} == {
        "runs",
        "runs/low",
        "runs/deep/high & far",
    }


def test_tables_stand_under_their_folders_and_the_overview_comes_last(tree: Path) -> None:
    radii, summaries = all_of(tree)
    *folders, (last, [(overview, _)]) = headed_tables(radii, summaries, parts(summaries))
    assert [heading for heading, _ in folders] == ["deep/high & far", "low"]
    assert [len(noted[0][0][0].cells) for _, noted in folders] == [5, 8]
    assert (last, overview[0].title) == ("All folders", "ACR of")
    assert [cell.text for cell in overview[0].cells] == [f"run {k}" for k in range(5)]


def test_every_part_gets_a_report_and_the_page_above_leads_there(
    tree: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    written = write(*all_of(tree), out, ["a warning"])
    assert sorted(p for p in out.rglob("*") if p.is_file()) == sorted(written)
    names = {"table.md", "table.tex", "table.csv", "report.html"}
    assert {p.name for p in out.iterdir() if p.is_file()} == names
    figures = {f"{name}.{kind}" for name in ("curves", "p_a") for kind in ("png", "svg")}
    for folder in ("low", "deep/high & far"):
        assert {p.name for p in (out / folder).iterdir()} == names | figures
    page = (out / "report.html").read_text()
    assert 'href="deep/high%20%26%20far/report.html">deep/high &amp; far</a>' in page
    assert "a warning" in page
    assert 'id="curves"' not in page
    assert "run 7" in page  # the table has all runs
    below = (out / "low" / "report.html").read_text()
    assert 'id="curves"' in below
    assert "a warning" not in below
    text = (out / "table.md").read_text()
    assert text.index("## deep/high & far\n\n| run") < text.index("## low\n\n| run")
    assert "% low\n% Certified accuracy" in (out / "table.tex").read_text()
    assert (out / "table.csv").read_text().count("\n") == 1 + 13


def test_the_command_names_the_folders_and_counts_what_lies_below(
    tree: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    result = CliRunner().invoke(app, ["report", str(tree), "--out", str(out)])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert [line.split(" ─")[0] for line in lines if "──" in line] == [
        "deep/high & far",
        "low",
        "All folders",
    ]
    assert sum(line.startswith("wrote ") for line in lines) == 5
    assert lines[-1] == f"wrote 16 more files, into folders of {out}"
