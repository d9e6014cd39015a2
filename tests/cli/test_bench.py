"""`covprop bench` end to end at tiny sizes; no assertion looks at a time."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Cli = Callable[..., tuple[int, str, str]]
TINY = ("--model", "lenet", "--width", 2, "--image", 8, "--quick", "--device", "cpu")


def test_step_prints_and_writes(cli: Cli, tmp_path: Path) -> None:
    code, out, err = cli(
        "bench", "step", *TINY, "--batch", 2, "--batch", 4, "--method", "shared",
        "--json", tmp_path / "a" / "step.json", "--out", tmp_path / "out",
    )  # fmt: skip
    assert code == 0, err
    assert "over fastest plain" in out
    document = json.loads((tmp_path / "a" / "step.json").read_text())
    assert [(r["method"], r["batch"]) for r in document["rows"]] == [
        ("plain", 2), ("shared", 2), ("plain", 4), ("shared", 4),
    ]  # fmt: skip
    assert all(row["over_plain"] > 0 for row in document["rows"])
    assert sorted(p.suffix for p in (tmp_path / "out").iterdir()) == [
        ".json",
        ".md",
        ".svg",
        ".svg",
    ]


def test_step_takes_all_methods_by_default(cli: Cli, tmp_path: Path) -> None:
    code, _, err = cli("bench", "step", *TINY, "--json", tmp_path / "step.json")
    assert code == 0, err
    rows = json.loads((tmp_path / "step.json").read_text())["rows"]
    assert [row["method"] for row in rows] == [
        "plain", "consistency", "macer", "shared", "shared-detached", "calibrated", "linearized",
    ]  # fmt: skip


def test_layers(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = cli(
        "bench", "layers", "--width", 2, "--image", 8, "--by-layer", "--quick",
        "--device", "cpu", "--save",
    )  # fmt: skip
    assert code == 0, err
    for expected in ("mean pass, Σ cached", "preact_resnet34", "R²", "1.blocks.0.conv1"):
        assert expected in out
    assert {p.suffix for p in (tmp_path / "results" / "bench").iterdir()} == {
        ".json",
        ".md",
        ".svg",
    }


def test_certify_of_a_run_and_of_an_untrained_model(cli: Cli, run_folder: Path) -> None:
    code, out, err = cli("bench", "certify", run_folder, "--images", 2, "--quick")
    assert code == 0, err
    assert "sequential" in out
    assert "untrained" not in out
    code, out, err = cli("bench", "certify", *TINY, "--images", 1, "--n", 50)
    assert code == 0, err
    assert "untrained" in out


def test_truth_of_a_run(cli: Cli, run_folder: Path, tmp_path: Path) -> None:
    code, _, err = cli(
        "bench", "truth", run_folder, "--images", 3, "--samples", 50, "--json", tmp_path / "t.json"
    )
    assert code == 0, err
    rows = json.loads((tmp_path / "t.json").read_text())["rows"]
    assert [r["estimator"] for r in rows] == [
        "shared",
        "calibrated",
        "linearized",
        "dense",
        "sampled",
    ]
    assert all(row["median"] > 0 for row in rows)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("step", "--method", "sharde"), 'no step to measure "sharde"'),
        (("step", "--trick", "magic"), 'no trick "magic"'),
        (("step", "--batch", 0), "at least one image"),
        (("step", "--rounds", 0), "at least one round"),
        (("step", "--threads", 0), "--threads"),
        (("step", "--image", -1), "--image"),
        (("step", "--model", "lnet"), 'no model "lnet"'),
        (("layers", "--device", "tpu9"), "tpu9"),
        (("truth", "nowhere"), "no run folder nowhere"),
    ],
)
def test_a_mistake_is_one_sentence(cli: Cli, words: tuple, expected: str) -> None:
    code, _, err = cli("bench", *words)
    assert code == 2
    assert expected in err
    assert err.count("\n") == 1


def test_more_images_than_there_are(cli: Cli, run_folder: Path) -> None:
    code, _, err = cli("bench", "truth", run_folder, "--images", 100_000)
    assert code == 2
    assert "test images" in err
