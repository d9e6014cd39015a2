"""A wave is run to its end, within its time, and comes home without its weights."""

import argparse
import json
import tarfile
import time
from pathlib import Path

import pytest
from scripts import benchmark

jobs = benchmark("jobs")
benchmark("alone")
results = benchmark("results")

WAVE = """
recipe = "digits/gaussian-0.25"
set = ["model.width=4", "train.device=cpu"]
epochs = 1
seconds = 1
[[job]]
name = "good"
certify = "--n 200 --max 2 --device cpu"
estimate = ["shared"]
also = { more = "--n 300 --max 3 --device cpu" }
[[job]]
name = "bad"
set = ["train.max_loss=0.01"]
[[job]]
name = "long"
seconds = 1e6
"""


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("COVPROP_COMMIT", "0123456789ab")
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setattr(results, "MPS_PIPE", tmp_path / "nvidia-mps/control")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "first.toml").write_text(WAVE)
    return argparse.Namespace(
        waves=[tmp_path / "first.toml"],
        data=None,
        runs=tmp_path / "runs",
        archive=tmp_path / "out" / "first.tar.gz",
        slots=2,
        beside=1,
        minutes=10.0,
        startup=1.0,
        again=False,
        alone=False,
        also=False,
        go_on=False,
    )


def test_a_wave_is_run_and_archived(
    options: argparse.Namespace, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = jobs.read_wave(options.waves[0])
    results.Queue(options, listed).run()
    said = capsys.readouterr().out
    assert "not run, for want of time: first/long-seed0" in said
    assert "bad-seed0: FAILED" in said
    record = json.loads((options.runs / "first/good-seed0/run.json").read_text())
    assert (record["status"], record["side_by_side"]) == ("done", 3)  # two here, one elsewhere
    assert (record["commit"], record["mps"]) == ("0123456789ab", False)
    assert record["commands"][1].startswith("covprop certify runs/first/good-seed0 --n 200")
    assert set(record["seconds_by_command"]) == {"train", "certify", "estimate"}
    with tarfile.open(options.archive) as tar:
        names = {Path(name) for name in tar.getnames()}
    good = {name.name for name in names if name.parent == Path("first/good-seed0")}
    kept = {"config.toml", "metrics.jsonl", "run.json", "job.log"}
    logs = {f"certify_sigma_0.25.{kind}" for kind in ("tsv", "json", "rows.jsonl")}
    logs |= {"estimated.tsv", "estimated.json"}
    assert good == kept | logs
    assert Path("first/bad-seed0/run.json") in names
    # What is done is not run again, and a failure only if asked for.
    assert [job.name for job in results.Queue(options, listed).waiting] == ["long"]
    capsys.readouterr()
    results.show(listed, options.runs)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("epochs")[1].split() for line in lines[:2]] == [["done"], ["failed"]]
    assert lines[3] == "1 of 3 jobs left, about 277 h 46 min of the machine"
    options.again = True
    assert [job.name for job in results.Queue(options, listed).waiting] == ["bad", "long"]
    # A finished run is certified further when that is asked for, one without `mps` too.
    del record["mps"]
    (options.runs / "first/good-seed0/run.json").write_text(json.dumps(record))
    options.also = True
    results.Queue(options, listed).run()
    before, record = record, json.loads((options.runs / "first/good-seed0/run.json").read_text())
    assert record["commands"][:3] == before["commands"]
    assert record["commands"][3].endswith(
        "--max 3 --device cpu --out runs/first/good-seed0/certify_more.tsv"
    )
    assert set(record["seconds_by_command"]) == {"train", "certify", "estimate", "certify_more"}
    assert (record["status"], record["epochs"], "mps" in record) == ("done", 1, False)
    assert len((options.runs / "first/good-seed0/certify_more.tsv").read_text().splitlines()) == 4
    with tarfile.open(options.archive) as tar:
        assert "first/good-seed0/certify_more.tsv" in tar.getnames()


def test_a_record_says_whether_mps_is_on(
    options: argparse.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert results.facts()["mps"] is False
    results.MPS_PIPE.parent.mkdir()
    results.MPS_PIPE.touch()
    assert results.facts()["mps"] is True
    results.MPS_PIPE.unlink()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "elsewhere")
    assert results.facts()["mps"] is True


def test_a_further_certificate_that_failed_is_not_recorded(options: argparse.Namespace) -> None:
    options.also = True
    options.waves[0].write_text(WAVE.split('[[job]]\nname = "bad"')[0].replace("--n 300", "--n -3"))
    folder = options.runs / "first/good-seed0"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"")
    before = '{"status": "done", "commands": [], "seconds_by_command": {}}'
    (folder / "run.json").write_text(before)
    results.Queue(options, jobs.read_wave(options.waves[0])).run()
    assert (folder / "job.log").read_text()
    assert (folder / "run.json").read_text() == before


def test_what_is_at_home_is_not_run_again(options: argparse.Namespace) -> None:
    listed = jobs.read_wave(options.waves[0])
    home = Path("results/first/long-seed0")
    home.mkdir(parents=True)
    (home / "run.json").write_text('{"status": "done"}')
    assert [job.name for job in results.Queue(options, listed).waiting] == ["good", "bad"]


def test_a_run_that_is_stopped_goes_on_later(
    options: argparse.Namespace, capsys: pytest.CaptureFixture[str]
) -> None:
    options.waves[0].write_text(
        'recipe = "digits/gaussian-0.25"\nset = ["train.device=cpu"]\nepochs = 2000\n'
        '[[job]]\nname = "a"\n'
    )
    queue = results.Queue(options, jobs.read_wave(options.waves[0]))
    queue._start(queue.waiting.pop())
    folder = options.runs / "first/a-seed0"
    end = time.monotonic() + 100
    while "epoch 1" not in (folder / "job.log").read_text() and time.monotonic() < end:
        time.sleep(0.2)
    queue._stop()
    assert "a-seed0: stopped by the time limit" in capsys.readouterr().out
    assert (folder / "state.pt").exists()
    assert not (folder / "run.json").exists()
    assert "to continue" in (folder / "job.log").read_text()


def test_nothing_is_started_without_time_for_it(
    options: argparse.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    options.minutes = 0.1
    queue = results.Queue(options, jobs.read_wave(options.waves[0]))
    queue.run()
    assert len(queue.waiting) == 3
    options.minutes, options.go_on = 1.2, True
    queue = results.Queue(options, jobs.read_wave(options.waves[0]))
    started: list[str] = []
    monkeypatch.setattr(queue, "_start", lambda job: started.append(job.name))
    queue.run()
    assert started == ["good", "bad", "long"]


def test_two_waves_are_one_queue(options: argparse.Namespace, tmp_path: Path) -> None:
    short = WAVE.split('[[job]]\nname = "bad"')[0]
    options.waves = [tmp_path / "first.toml", tmp_path / "second.toml"]
    for wave in options.waves:
        wave.write_text(short)
    both = [job for wave in options.waves for job in jobs.read_wave(wave)]
    queue = results.Queue(options, both)
    assert [job.path for job in queue.waiting] == ["first/good-seed0", "second/good-seed0"]
    queue.run()
    with tarfile.open(options.archive) as tar:
        names = tar.getnames()
    for wave in ("first", "second"):
        record = json.loads((options.runs / wave / "good-seed0/run.json").read_text())
        assert (record["wave"], record["status"]) == (wave, "done")
        assert f"runs/{wave}/good-seed0" in record["commands"][0]
        assert f"{wave}/good-seed0/run.json" in names


def test_the_archive_has_the_waves_of_which_no_job_was_chosen(
    options: argparse.Namespace, tmp_path: Path
) -> None:
    """`--only` chooses what is run; the archive, written anew, is of all that is finished."""
    options.waves.append(tmp_path / "second.toml")
    for wave in ("first", "second"):
        (options.runs / wave / "a-seed0").mkdir(parents=True)
        (options.runs / wave / "a-seed0/run.json").write_text("{}")
    results.Queue(options, []).archive()
    with tarfile.open(options.archive) as tar:
        assert tar.getnames() == [f"{wave}/a-seed0/run.json" for wave in ("first", "second")]


def test_alone_times_also_what_is_done(options: argparse.Namespace) -> None:
    options.waves[0].write_text(WAVE.split('[[job]]\nname = "bad"')[0])
    options.alone = True
    home = options.runs / "first/good-seed0"
    home.mkdir(parents=True)
    (home / "run.json").write_text('{"status": "done"}')
    results.Queue(options, jobs.read_wave(options.waves[0])).time_alone()
    header, row = (options.runs / "first/timing.tsv").read_text().splitlines()
    assert dict(zip(header.split("\t"), row.split("\t"), strict=True))["job"] == "good"


def test_links_make_an_epoch_longer(tmp_path: Path) -> None:
    for name in ("train/a/1.jpg", "train/b/2.jpg", "val/a/3.jpg"):
        (tmp_path / "few" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "few" / name).write_text(name)
    for _ in range(2):
        jobs.repeated(tmp_path / "few", tmp_path / "many", 3)
    found = sorted(
        p.relative_to(tmp_path / "many").as_posix() for p in tmp_path.rglob("many/*/*/*")
    )
    assert found == [
        *(f"train/a/1-{i}.jpg" for i in range(3)),
        *(f"train/b/2-{i}.jpg" for i in range(3)),
        "val/a/3-0.jpg",
    ]
    assert (tmp_path / "many/train/b/2-2.jpg").read_text() == "train/b/2.jpg"
