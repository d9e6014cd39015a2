import sys
from pathlib import Path

import pytest
from certifications import HEADER, make_run
from typer.testing import CliRunner

from covprop.cli import app, main

runner = CliRunner()


def test_prints_the_table(tmp_path: Path) -> None:
    make_run(tmp_path / "digits-a")
    result = runner.invoke(app, ["report", str(tmp_path)])
    assert result.exit_code == 0
    for expected in ("digits-a", "gaussian", "ACR", "r=0.25", "abstain %", "4.5 s", "0.99–0.999"):
        assert expected in result.output
    assert "wrote" not in result.output


def test_writes_page_and_folder(tmp_path: Path) -> None:
    log = make_run(tmp_path / "run")
    page, out = tmp_path / "x" / "page.html", tmp_path / "out"
    result = runner.invoke(app, ["report", str(log), "--html", str(page), "--out", str(out)])
    assert result.exit_code == 0
    assert page.read_text() == (out / "report.html").read_text()
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    for line in result.output.splitlines():
        if line.startswith("wrote "):
            assert Path(line.removeprefix("wrote ")).is_file()


def test_warnings_go_to_stderr(tmp_path: Path) -> None:
    log = make_run(tmp_path / "run")
    log.write_text(log.read_text()[:-25])
    result = runner.invoke(app, ["report", str(log)])
    assert result.exit_code == 0
    assert "warning: " in result.stderr
    assert "cut off" in result.stderr
    assert "warning" not in result.stdout


def test_help_teaches_by_example() -> None:
    result = runner.invoke(app, ["report", "--help"])
    shown = " ".join(result.output.split())
    assert "covprop report runs --html report.html" in shown
    assert "(RUN.old-1, LOG.old-1) are left out of the report on the folder they are in" in shown


def refusal(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """What the program says when it ends with exit code 2."""
    monkeypatch.setattr(sys, "argv", ["covprop", "report", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    captured = capsys.readouterr()
    assert caught.value.code == 2
    assert captured.out == ""
    return captured.err


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", "is empty"), ("a\tb\n", "not a certification log"), (HEADER, "no complete row")],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    tmp_path: Path,
    text: str,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = tmp_path / "log.tsv"
    log.write_text(text)
    said = refusal([str(log)], monkeypatch, capsys)
    assert said.count("\n") == 1
    assert str(log) in said
    assert expected in said


def test_a_page_cannot_take_the_place_of_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = make_run(tmp_path / "run")
    (tmp_path / "page.html").mkdir()
    said = refusal([str(log), "--html", str(tmp_path / "page.html")], monkeypatch, capsys)
    assert "give the name of a file" in said


@pytest.mark.parametrize("name", ["certify_sigma_0.25.tsv", "config.toml", "model.safetensors"])
def test_a_page_cannot_take_the_place_of_a_run_s_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    log = make_run(tmp_path / "run")
    place = log.with_name(name)
    before = place.read_bytes() if place.exists() else None
    said = refusal([str(log), "--html", str(place)], monkeypatch, capsys)
    assert f"--html names the page, a file ending in .html, not {place}." in said
    assert said.count("\n") == 1
    assert before == (place.read_bytes() if place.exists() else None)


def test_one_damaged_run_hides_no_other(tmp_path: Path) -> None:
    make_run(tmp_path / "fine")
    log = make_run(tmp_path / "damaged")
    log.write_text(log.read_text() + "garbage\n")
    result = runner.invoke(app, ["report", str(tmp_path)])
    assert result.exit_code == 0
    assert "fine" in result.stdout
    assert "damaged" not in result.stdout
    assert f"warning: {log} was left out: line " in result.stderr


def test_a_damaged_run_that_was_named_is_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = make_run(tmp_path / "damaged")
    log.write_text(log.read_text() + "garbage\n")
    for named in (log, log.parent, tmp_path):  # of the last nothing would be left
        said = refusal([str(named)], monkeypatch, capsys)
        assert said.count("\n") == 1
        assert f"{log}, line " in said
