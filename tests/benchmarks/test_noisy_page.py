"""The table, the curves and the archive of several runs, from small files written by hand."""

import argparse
import io
import json
import tarfile
from pathlib import Path

import pytest
import torch
from PIL import Image
from scripts import benchmark

from covprop.bench import machine
from covprop.errors import InvalidInput

page = benchmark("noisy_page")


def write_run(
    folder: Path, name: str, accuracy: float, seconds: list[float], data: str, rate: float = 0.45
) -> None:
    run = folder / name
    run.mkdir(parents=True)
    (run / "config.toml").write_text(
        f'[data]\nname = "{data}"\n[labels]\nname = "pair"\nrate = {rate}\n[model]\nname = "cnn9"\n'
    )
    rows = [
        {"epoch": i + 1, "seconds": s, "test_accuracy_clean": accuracy, "label_precision": 0.5}
        for i, s in enumerate(seconds)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = {
        "test_accuracy_mean": accuracy,
        "test_accuracy_std": 0.004,
        "label_precision": 0.5,
        "epochs": len(seconds),
        "suspects": {"flagged": 3, "average_precision": 0.25},
    }
    (run / "summary.json").write_text(json.dumps(summary))


def test_a_table_by_hand(tmp_path: Path) -> None:
    write_run(tmp_path, "plain-seed0", 0.50, [9.0, 10.0, 12.0, 13.0], "cifar10")
    write_run(tmp_path, "coteaching-seed0", 0.70, [5.0, 7.0, 9.0], "cifar10")
    write_run(tmp_path, "coteaching-seed1", 0.80, [5.0, 7.0, 9.0], "cifar10")
    (tmp_path / "unfinished-seed0").mkdir()
    entries = page.read(tmp_path)
    assert page.table(entries).splitlines()[2:] == [
        "| coteaching | 2 | 0.750 ± 0.071 | 2 | 0.500 | 0.250 | 2.00 | 0.726 |",
        "| plain | 1 | 0.500 ± 0.004 | 1 | 0.500 | 0.250 | 1.00 |  |",
    ]
    (tmp_path / "timing.tsv").write_text("method\tseconds_per_epoch\tratio\nplain\t0.5\t1.0\n")
    timing = page.read_timing(tmp_path / "timing.tsv")
    assert page.table(entries, timing).splitlines()[3].endswith("| 0.250 | 0.50 |  |")
    assert page.table(entries, timing).splitlines()[2].endswith("| 0.250 | – | 0.726 |")
    made = {"device": "H", "torch": "2", "python": "3", "cuda": None, "commit": "c", "date": "d"}
    text = page.page(entries, title="T", machine=made | {"command": "go"}, timing=timing)
    assert "H, torch 2, Python 3, commit c, d:" in text
    assert "Network cnn9; 3, 4 epochs." in text
    assert page.table(entries, timing) in text
    later = {"device": "H2", "commit": "c2", "date": "d2", "command": "on", "runs": ["a", "b"]}
    text = page.page(entries, title="T", machine=made | {"command": "go", "later": [later]})
    assert "Then, H2, commit c2, d2, a, b:\n\n```console\non\n```\n" in text


def test_the_paper_s_figures_are_for_45_percent_pair_flips(tmp_path: Path) -> None:
    for rate, paper in ((0.45, "0.726"), (0.2, "")):
        write_run(tmp_path / f"{rate}", "coteaching-seed0", 0.7, [5.0, 7.0], "cifar10", rate)
        (line,) = page.table(page.read(tmp_path / f"{rate}")).splitlines()[2:]
        assert line.split(" | ")[-1].strip(" |") == paper
    config = tmp_path / "0.45/coteaching-seed0/config.toml"
    config.write_text(config.read_text().replace("pair", "symmetric"))
    (line,) = page.table(page.read(tmp_path / "0.45")).splitlines()[2:]
    assert line.endswith("|  |")


def test_no_timing(tmp_path: Path) -> None:
    assert page.read_timing(tmp_path / "timing.tsv") is None


def test_curves_are_a_picture(tmp_path: Path) -> None:
    write_run(tmp_path, "plain-seed0", 0.5, [1.0, 2.0], "digits")
    write_run(tmp_path, "plain-seed1", 0.6, [1.0, 2.0, 3.0], "digits")
    with Image.open(io.BytesIO(page.curves(page.read(tmp_path)))) as picture:
        assert (picture.format, picture.size) == ("PNG", (1320, 540))


def test_a_folder_without_runs(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no finished run"):
        page.read(tmp_path)


def test_a_run_without_test_accuracies_is_named(tmp_path: Path) -> None:
    write_run(tmp_path, "plain-seed0", 0.5, [1.0, 2.0], "digits")
    file = tmp_path / "plain-seed0" / "summary.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"test_accuracy_mean": None}))
    with pytest.raises(InvalidInput, match=r"plain-seed0 has no test accuracies.*eval_every=1"):
        page.read(tmp_path)


def test_the_archive_has_no_weights(tmp_path: Path) -> None:
    out = tmp_path / "digits-pair-0.45"
    write_run(out, "plain-seed0", 0.5, [2.0], "digits")
    (out / "plain-seed0/state.pt").write_bytes(b"large")
    options = argparse.Namespace(dataset="digits", out=out, archive=tmp_path / "a.tar.gz")
    page.tell_machine(options, [], machine.facts(torch.device("cpu")))
    page.conclude(options)
    with tarfile.open(options.archive) as archive:
        names = {name.removeprefix("digits-pair-0.45/") for name in archive.getnames()}
    kept = {f"plain-seed0/{name}" for name in ("config.toml", "metrics.jsonl", "summary.json")}
    assert names == {"README.md", "curves.png", "machine.json"} | kept
    assert "| plain | 1 | 0.500 ± 0.004 | 1 | 0.500 |" in (out / "README.md").read_text()


def test_commands_that_went_on_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = argparse.Namespace(out=tmp_path)
    words = ["digits", "--out", "/home/me/o", "--data", "d", "--archive", "a.tgz", "--jobs", "2"]
    monkeypatch.setattr("sys.argv", ["noisy.py", *words])
    facts = machine.facts(torch.device("cpu"))
    for commit, runs in (("one", ["plain-seed1"]), ("two", []), ("three", ["plain-seed1"])):
        monkeypatch.setenv("COVPROP_COMMIT", commit)
        page.tell_machine(options, runs, facts)
    found = json.loads((tmp_path / "machine.json").read_text())
    said = "python benchmarks/noisy.py digits --out OUT --data DATA --archive ARCHIVE --jobs 2"
    assert (found["command"], found["commit"]) == (said, "one")
    (later,) = found["later"]  # with nothing left to do only the page is written anew
    assert (later["commit"], later["runs"]) == ("three", ["plain-seed1"])
