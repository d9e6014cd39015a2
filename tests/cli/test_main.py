"""What all verbs share: too little memory, a GPU that failed are a sentence, Ctrl-C is 130."""

import contextlib
import io
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import covprop
from covprop import cli as command_line
from covprop.errors import InvalidInput, out_of_memory


def test_the_version(cli: Callable[..., tuple[int, str, str]]) -> None:
    assert cli("--version") == (0, f"covprop {covprop.__version__}\n", "")


@pytest.mark.parametrize(
    ("verb", "usage"),
    [
        (("train",), "RECIPE"),
        (("certify",), "RUN"),
        (("predict",), "IMAGE]..."),
        (("report",), "RUN|TSV"),
        (("bench", "truth"), "RUN"),
    ],
)
def test_help_calls_an_argument_as_its_examples_do(
    cli: Callable[..., tuple[int, str, str]], verb: tuple[str, ...], usage: str
) -> None:
    line = next(line for line in cli(*verb, "--help")[1].splitlines() if "Usage:" in line)
    assert usage in line
    assert ("[[" in line, "......" in line) == (False, False)


def test_letters_that_the_locale_lacks_end_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "argv", ["covprop", "list", "rules"])
    with pytest.raises(SystemExit) as exit_:
        command_line.main()
    out.flush()
    assert exit_.value.code in (None, 0)
    assert b"\\u03a3" in out.buffer.getvalue()  # Σ


def test_a_model_beyond_all_memory_is_one_sentence(
    cli: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    code, out, err = cli(
        "train", "digits/gaussian-0.25", "--set", "model.width=2000000000", "--out", str(tmp_path)
    )
    assert (code, out) == (1, "")
    assert err.startswith("covprop: out of memory (")
    assert err.count("\n") == 1
    assert not (tmp_path / "config.toml").exists()


def test_what_torch_and_python_say_of_memory_is_known() -> None:
    with pytest.raises(RuntimeError) as error:
        torch.empty(2**60, dtype=torch.int8)
    assert out_of_memory(error.value)
    assert out_of_memory(MemoryError())
    assert not out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


@pytest.mark.parametrize("failure", [ImportError("initialization failed"), InvalidInput("odd")])
def test_an_interrupt_that_a_library_turned_into_an_error_is_an_interrupt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], failure: Exception
) -> None:
    def importing() -> None:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise failure

    handler = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(command_line, "app", importing)
    with pytest.raises(SystemExit) as stopped:
        command_line.main()
    assert stopped.value.code == 130
    assert capsys.readouterr() == ("", "")
    assert signal.getsignal(signal.SIGINT) is handler


def test_an_error_without_an_interrupt_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing() -> None:
        raise ImportError("initialization failed")

    monkeypatch.setattr(command_line, "app", failing)
    with pytest.raises(ImportError):
        command_line.main()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_output_that_is_full_is_one_sentence() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "covprop", "list", "methods"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("covprop: what is printed cannot be written (No space left on")
    assert done.stderr.count("\n") == 1


def test_a_gpu_that_failed_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing() -> None:
        raise torch.AcceleratorError("CUDA error: unspecified launch failure\nSearch for `cuda`")

    monkeypatch.setattr(command_line, "app", failing)
    with pytest.raises(SystemExit) as stopped:
        command_line.main()
    assert stopped.value.code == 1
    err = capsys.readouterr().err
    assert err.startswith("covprop: the GPU failed (CUDA error: unspecified launch failure). ")
    assert err.count("\n") == 1
