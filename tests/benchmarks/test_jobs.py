"""Wave files become jobs, and no job is started that will not end in time."""

from pathlib import Path

import pytest
from scripts import BENCHMARKS, benchmark

from covprop.errors import InvalidInput
from covprop.train import load

WAVES = sorted((BENCHMARKS / "waves").glob("*.toml"))


jobs = benchmark("jobs")


def wave(tmp_path: Path, text: str) -> Path:
    (tmp_path / "wave.toml").write_text(text)
    return tmp_path / "wave.toml"


def test_a_wave_becomes_jobs(tmp_path: Path) -> None:
    path = wave(
        tmp_path,
        """
        recipe = "digits/gaussian-0.25"
        set = ["train.lr=0.1"]
        certify = "--n 1000 --max 20 --skip 3 --bf16 --split holdout"
        also = { fixed = "--n 2000" }
        estimate = ["shared"]
        seconds = 2
        certify_seconds = 7
        [[job]]
        name = "plain"
        epochs = 3
        seeds = [0, 4]
        [[job]]
        name = "radius"
        recipe = "digits/radius-0.25"
        set = ["train.lr=0.2"]
        epochs = [6, 10]
        certify = ""
        """,
    )
    made = jobs.read_wave(path)
    folders = ["plain-seed0", "plain-seed4", "radius-6epochs-seed0", "radius-10epochs-seed0"]
    assert [job.folder for job in made] == folders
    assert made[0].alone == 3 * 2 + 7
    recipes = [load(job.recipe, job.set) for job in made]
    assert [r.train.seed for r in recipes] == [0, 4, 0, 0]
    assert [r.train.lr for r in recipes] == [0.1, 0.1, 0.2, 0.2]
    assert [r.train.epochs for r in recipes] == [3, 3, 6, 10]
    assert [r.method["from_epoch"] for r in recipes[2:]] == [3, 5]  # half of the run, as in 30
    train, certify, estimate = made[1].commands(Path("run"), Path("DATA"))
    assert train[:4] == ["train", "digits/gaussian-0.25", "--out", "run"]
    assert certify[:4] == ["certify", "run", "--data", "DATA"]
    assert set(certify[4:]) == {
        *("--n", "1000", "--max", "20", "--skip", "3", "--bf16", "--split", "holdout")
    }
    assert made[1].also_commands(Path("run"), None) == [
        ["certify", "run", "--n", "2000", "--out", "run/certify_fixed.tsv"]
    ]
    same = ["--split", "holdout", "--skip", "3", "--max", "20"]
    assert estimate[4:] == [*same, "--estimator", "shared"]
    assert [words[0] for words in made[2].commands(Path("run"), None)] == ["train", "estimate"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('epoch = 3\n[[job]]\nname = "a"', 'unknown key "epoch" .*epochs'),
        ('[[job]]\nname = "a"', "names no recipe"),
        ("[[job]]\nepochs = 2", "needs a name"),
        ('recipe = "digits/gaussian-0.25"\n' + '[[job]]\nname = "a"\n' * 2, "a-seed0 more than"),
        ('[[job]]\nname = "a"\nrecipe = "digits/gausian-0.25"', "gaussian-0.25"),
        (
            'recipe = "digits/gaussian-0.25"\n[[job]]\nname = "a"\nset = ["train.epoch=2"]',
            'there is no option train.epoch .did you mean "epochs"',
        ),
        ("[[job]", "cannot be read"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        jobs.read_wave(wave(tmp_path, text))


@pytest.mark.parametrize("path", WAVES, ids=[path.stem for path in WAVES])
def test_the_waves_are_valid(path: Path) -> None:
    assert jobs.read_wave(path)


def make_job(seconds: float) -> object:
    return jobs.Job("w", "a", "r", (), 0, 10, (), (), seconds / 10, 0.0)


def test_only_what_ends_in_time_is_started() -> None:
    pace = jobs.Pace(startup=30, slots=4)
    long, short = make_job(100), make_job(10)
    # Beside three others each gets a quarter of the machine; alone all of it.
    assert pace.wall(long, running=3) == 30 + 400
    assert pace.wall(long, running=0) == 30 + 100
    assert pace.choose([long, short], running=3, left=430) == 0
    assert pace.choose([long, short], running=3, left=429) == 1
    assert pace.choose([long, short], running=3, left=69) is None
    assert pace.choose([], running=0, left=1e9) is None


def test_the_pace_is_learned() -> None:
    pace = jobs.Pace(startup=30, slots=4)
    for wall in (230, 1030, 280):  # stretched 2, 10 and 2.5 times: the median counts
        pace.finished(make_job(100), wall)
    assert pace.wall(make_job(10), running=3) == 30 + 25
    assert pace.wall(make_job(10), running=0) == 30 + 10  # never faster than alone


@pytest.mark.parametrize(
    ("codes", "end", "restarts"),
    [
        ([0], 0, 0),
        ([2], 2, 0),  # it said what is wrong, and would say so again
        ([-11, 0], 0, 1),
        ([1, -6, 0], 0, 2),
        ([1, 1, 1], 1, 2),
    ],
    ids=["done", "refused", "crashed", "twice", "for good"],
)
def test_a_command_that_crashed_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codes: list[int], end: int, restarts: int
) -> None:
    class Process:
        def __init__(self, words: list[str], **how: object) -> None:
            assert words[3:] == ["train", "digits"]
            self.code = codes.pop(0)

        def poll(self) -> int:
            return self.code

    monkeypatch.setattr(jobs.subprocess, "Popen", Process)
    with (tmp_path / "job.log").open("wb") as log:
        one = jobs.Running(None, tmp_path, [["train", "digits"], ["certify", "digits"]], log)
        one.start({})
        while (code := one.step_done({})) is None:
            pass
    assert (code, one.restarts, codes) == (end, restarts, [])
    assert one.commands == [["certify", "digits"]]
    assert list(one.seconds) == ["train"]
