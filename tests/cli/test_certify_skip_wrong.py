"""`covprop certify --skip-wrong`: the rows and numbers of the full run, for fewer samples."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from certifications import journal, table

from covprop.certify.records import Log
from covprop.certify.rows import Row
from covprop.report.tsv import read_tsv

Cli = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("options", [["--n", 1000], ["--n", 3000, "--sequential"]])
@pytest.mark.parametrize("fast", ["--fast", "--no-fast"])
def test_wrong_guesses_are_not_bounded(
    cli: Cli, run_folder: Path, tmp_path: Path, options: list[object], fast: str
) -> None:
    """Every other row is that of the full run, and so are the numbers of the table."""
    whole, path = tmp_path / "whole.tsv", tmp_path / "short.tsv"
    words = ("certify", run_folder, *options, fast, "--sigma", 0.35, "--max", 60, "--out")
    full = cli(*words, whole)[1].splitlines()
    code, out, err = cli(*words, path, "--skip-wrong")
    assert code == 0, err
    rows = journal(path)
    skipped = [row for row in rows if row["n"] == 0]
    assert 3 < len(skipped) < 50
    certified = 0
    for row, other in zip(rows, journal(whole), strict=True):
        if row["n"]:
            assert row == other
            continue
        assert row["predict"] not in (-1, row["label"])
        assert other["predict"] in (-1, row["predict"])
        assert (row["correct"], row["radius"], row["p_lower"], row["count"]) == (0, 0, 0, 0)
        certified += other["radius"] > 0
    assert certified > 0  # some of them would have been certified for the wrong class
    assert out.splitlines()[:2] == full[:2]
    mean = sum(row["n"] for row in rows) / 60
    share = len(skipped) / 60
    assert f"wrong guesses not bounded {share:.1%}, mean samples {mean:.0f}" in out
    assert read_tsv(path).skipped.tolist() == [row["n"] == 0 for row in rows]
    assert not read_tsv(whole).skipped.any()
    meta = json.loads(path.with_suffix(".json").read_text())
    assert (meta["skip_wrong"], meta["not_bounded"]) == (True, len(skipped))
    assert (
        not {"skip_wrong", "not_bounded"}
        & json.loads(whole.with_suffix(".json").read_text()).keys()
    )


def test_going_on_without_wrong_guesses(cli: Cli, run_folder: Path, tmp_path: Path) -> None:
    """The number of them in the side-car is that of all rows, and is not there in between."""
    path, whole = tmp_path / "log.tsv", tmp_path / "whole.tsv"
    words = ("certify", run_folder, "--n", 400, "--sigma", 0.6, "--skip-wrong", "--out")
    cli(*words, whole, "--max", 30)
    assert cli(*words, path, "--max", 12)[0] == 0
    first = json.loads(path.with_suffix(".json").read_text())["not_bounded"]
    settings = {**json.loads(path.with_suffix(".json").read_text())}
    del settings["not_bounded"]
    with Log(path, settings, Row):
        assert json.loads(path.with_suffix(".json").read_text()) == settings
    assert cli(*words, path, "--max", 30)[0] == 0
    assert table(path) == table(whole)
    assert journal(path) == journal(whole)
    assert path.with_suffix(".json").read_text() == whole.with_suffix(".json").read_text()
    last = json.loads(path.with_suffix(".json").read_text())["not_bounded"]
    assert 0 < first < last == sum(row["n"] == 0 for row in journal(path))
    assert cli(*words, path, "--max", 30)[0] == 0  # nothing left to do
    assert path.with_suffix(".json").read_text() == whole.with_suffix(".json").read_text()


def test_logs_with_and_without_wrong_guesses_do_not_mix(cli: Cli, run_folder: Path) -> None:
    path = run_folder / "certify_sigma_0.25.tsv"
    files = (path, path.with_suffix(".json"), path.with_suffix(".rows.jsonl"))
    for before, after, message in (
        ([], ["--skip-wrong"], "skip_wrong = unset, not True"),
        (["--skip-wrong"], [], "skip_wrong = True, not unset"),
    ):
        for file in files:
            file.unlink(missing_ok=True)
        assert cli("certify", run_folder, "--n", 400, "--max", 3, *before)[0] == 0
        content = [file.read_bytes() for file in files]
        code, _, err = cli("certify", run_folder, "--n", 400, "--max", 8, *after)
        assert (code, message in err, err.count("\n")) == (2, True, 1)
        assert [file.read_bytes() for file in files] == content
