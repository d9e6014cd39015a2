"""What a run says on a terminal, off a terminal and in its files."""

import io
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from covprop.errors import CovpropError
from covprop.train import log as log_module
from covprop.train.log import Board, Display, Metrics, Row, sentence

ROW: Row = {
    "epoch": 2,
    "loss": 0.51234,
    "train_accuracy": 0.9,
    "estimated_radius": 0.25,
    "lr": 0.01,
    "seconds": 12.0,
    "images_per_second": 1000.0,
}


def test_a_row_in_words() -> None:
    text = sentence(ROW | {"test_accuracy_noisy": 0.8, "test_accuracy_clean": 0.85})
    assert text == (
        "epoch 2: loss 0.5123, train accuracy 0.900, test accuracy 0.800 under noise, "
        "0.850 clean, estimated radius 0.250, lr 0.01, 1000 images/s, 12.0 s"
    )
    assert "radius" not in sentence(ROW | {"estimated_radius": None})


def test_metrics_keep_the_rows_that_count(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first = Metrics(path, keep=0)
    assert path.read_text() == ""
    first.append(ROW)
    first.append(ROW | {"epoch": 3})
    again = Metrics(path, keep=1)
    again.append(ROW | {"epoch": 7})
    assert [json.loads(line)["epoch"] for line in path.read_text().splitlines()] == [2, 7]


def test_a_terminal_gets_a_bar_with_everything() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=160)
    display = Display(console, epochs=4, steps=10, done=10)
    display.step(15, 1, ROW)
    display.say("epoch over")
    display.close()
    text = out.getvalue()
    for part in (
        "epoch 2/4 step 5/10",
        "loss 0.512",
        "acc 0.900",
        "est. radius 0.250",
        "1000 images/s",
    ):
        assert part in text
    assert "epoch over" in text


def test_the_time_left_fits_a_terminal_of_80_columns() -> None:
    out = io.StringIO()
    display = Display(Console(file=out, force_terminal=True, width=80), epochs=40, steps=10, done=0)
    display.step(15, 1, ROW)
    display.close()
    assert re.search(r"-:--:--|\d:\d\d:\d\d", out.getvalue())
    assert "step 5/10" in out.getvalue()


class Gone(io.StringIO):
    """A terminal that was closed, or a full disk."""

    def write(self, text: str) -> int:
        raise OSError(5, "Input/output error")


@pytest.mark.parametrize("terminal", [True, False])
def test_what_cannot_be_printed_stops_no_training(terminal: bool) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=80)
    display = Display(console, epochs=4, steps=10, done=0)
    console.file = Gone()
    display.say("one", "two")
    display.close()
    assert display.console is None


def test_a_closed_pipe_stops_no_training() -> None:
    script = """
import sys
from rich.console import Console
from covprop.train.log import Display
display = Display(Console(), epochs=1, steps=1, done=0)
display.say("one")
sys.stdin.read()
display.say("two")
print("done", file=sys.stderr)
"""
    command, pipe = [sys.executable, "-c", script], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as run:
        assert run.stdin is not None
        assert run.stdout is not None
        assert run.stderr is not None
        assert run.stdout.readline() == "one\n"
        run.stdout.close()
        run.stdin.close()
        assert run.stderr.read() == "done\n"
    assert run.returncode == 0


def test_a_file_gets_plain_lines_only() -> None:
    out = io.StringIO()
    display = Display(Console(file=out, width=20), epochs=4, steps=10, done=0)
    display.step(5, 0, ROW)
    display.say(sentence(ROW))
    display.close()
    assert out.getvalue() == sentence(ROW) + "\n"


def test_a_long_epoch_says_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every 30 s; the time left is by the pace since the first report, at step 2 after 40 s."""
    now = [0.0]
    monkeypatch.setattr(log_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    out = io.StringIO()
    display = Display(Console(file=out, width=20), epochs=4, steps=10, done=10)
    for step, at in ((2, 40), (3, 50), (5, 71), (6, 80), (8, 100), (9, 101), (10, 131)):
        now[0] = at
        display.step(10 + step, 1, ROW)
    display.close()
    epoch, shown = "epoch 2 of 4, step", "loss 0.5123, 1000 images/s"
    assert out.getvalue().splitlines() == [
        f"{epoch} 2 of 10: {shown}",
        f"{epoch} 5 of 10: {shown}, 4 min left",  # 31 s for 3 steps, 25 are left
        f"{epoch} 9 of 10: {shown}, 3 min left",
    ]
    display.say("epoch 2: over")  # so that an epoch of less than 30 s has no line within
    now[0] = 160
    display.step(25, 2, ROW)
    assert out.getvalue().endswith("epoch 2: over\n")


def test_other_processes_are_silent(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display(None, epochs=1, steps=1, done=0)
    display.step(1, 0, ROW)
    display.say("nothing")
    display.close()
    assert capsys.readouterr().out == ""


def test_tensorboard_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(CovpropError, match=r"pip install '\.\[tensorboard\]'"):
        Board(tmp_path, 0)


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    board = Board(tmp_path, 0)
    board.add(ROW)
    board.close()
    assert list((tmp_path / "tensorboard").iterdir())
