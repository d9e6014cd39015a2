import io
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from rich.console import Console

from covprop.bench import plots
from covprop.bench.report import Report, Table, mebibytes, milliseconds
from covprop.bench.timing import Timing
from covprop.bench.truth_report import truth_report
from covprop.estimate.truth import Truth

FACTS: dict = {
    "device": "NVIDIA H200 (x)",
    "cores": 2,
    "threads": 1,
    "load": 0.5,
    "torch": "2",
    "cuda": "13",
    "commit": "abc",
    "date": "today",
    "command": "covprop bench x",
}


def report() -> Report:
    table = Table("A title", ["name", "ms"], [["a", "1"], ["b", "2"]])
    return Report("step", "net", FACTS, {"rounds": 2}, [{"a": 1.5}], [table], ["a note"],
                  lambda: {"method": plots.bars({"a": 1.0}, "ms")})  # fmt: skip


def test_saves_json_markdown_and_figures(tmp_path: Path) -> None:
    paths = report().save(tmp_path / "new" / "folder")
    stem = "step_net_nvidia-h200-x"
    assert [path.name for path in paths] == [f"{stem}.json", f"{stem}.md", f"{stem}-method.svg"]
    document = json.loads(paths[0].read_text())
    assert document["machine"] == FACTS
    assert document["rows"] == [{"a": 1.5}]
    text = paths[1].read_text()
    assert "| name | ms |\n| --- | ---: |\n| a | 1 |\n| b | 2 |" in text
    assert f"![method]({stem}-method.svg)" in text
    assert "covprop bench x" in text
    assert sorted(p.name for p in paths[0].parent.iterdir()) == sorted(p.name for p in paths)


def test_without_figures_none_is_linked(tmp_path: Path) -> None:
    paths = report().save(tmp_path, figures=False)
    assert len(paths) == 2
    assert "![" not in paths[1].read_text()


def test_prints_table_machine_and_notes() -> None:
    file = io.StringIO()
    report().print(Console(file=file, width=100))
    for expected in ("A title", "NVIDIA H200", "CUDA 13", "commit abc", "a note"):
        assert expected in file.getvalue()


def test_a_busy_machine_is_said() -> None:
    quiet = report()
    quiet.facts = {**FACTS, "load": 0.9}
    del quiet.facts["cuda"]
    assert not any("busy" in line for line in quiet.remarks())
    quiet.facts["load"] = 5.0
    assert "The machine was busy (load 5.0 on 2 cores)" in quiet.markdown()


def test_numbers_are_readable() -> None:
    assert milliseconds(Timing(0.0123, 0.012, 0.0135, 1, 1)) == "12.3 (12.0–13.5)"
    assert milliseconds(Timing(0.0000123, 0.00001, 0.0015, 1, 1)) == "0.012 (0.010–1.50)"
    assert mebibytes(3 * 2**30) == "3,072"
    assert mebibytes(None) == "–"


def test_the_table_of_truth_has_its_quantiles_in_order() -> None:
    rows = [Truth("shared", 1.0, 2.0, 3.0, 0.5, images=8), Truth("dense", note="too large")]
    shown = truth_report(rows, "net", 0.25, 200, FACTS)
    (table,) = shown.tables
    assert list(table.columns) == [
        *("estimator", "10 %", "50 %", "90 %", "correlation of logarithms", "images")
    ]
    assert table.rows == [["shared", "1", "2", "3", "0.5", "8"], ["dense", *"––––", "0"]]
    assert "a relative error of about 0.1;" in shown.notes[0]
    assert shown.notes[1] == "dense: too large"
    assert json.loads(shown.json())["rows"][1]["median"] is None


@pytest.mark.parametrize(
    "image",
    [
        plots.bars({"a": 1.0, "b": 2.0}, "ms"),
        plots.lines({"a": [(64, 1.0), (256, 2.0)], "b": []}, "batch", "ratio"),
        plots.fits({"a": plots.Line([(10, 1.0), (20, 2.0)], ["x", "y"], 0.1, 0.0)}, "layers", "ms"),
    ],
)
def test_figures_are_svg(image: bytes) -> None:
    assert ET.fromstring(image).tag == "{http://www.w3.org/2000/svg}svg"
