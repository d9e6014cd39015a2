import subprocess
from pathlib import Path

import pytest
import torch

from covprop.bench import machine


def test_facts_name_the_place_and_the_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/covprop", "bench", "step", "--batch", "64"])
    found = machine.facts(torch.device("cpu"))
    assert found["command"] == "covprop bench step --batch 64"
    assert found["torch"] == torch.__version__
    assert found["threads"] == torch.get_num_threads()
    assert found["device"]


def test_commit_is_that_of_the_sources() -> None:
    here = Path(machine.__file__).parent
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True)
    found = machine.commit()
    if done.returncode:
        assert found is None
    else:
        assert found is not None
        assert done.stdout.startswith(found.removesuffix("+changes"))


@pytest.mark.parametrize(("changed", "expected"), [("", "abc"), (" M here.py", "abc+changes")])
def test_sources_that_differ_from_their_commit_are_marked(
    monkeypatch: pytest.MonkeyPatch, changed: str, expected: str
) -> None:
    answers = {"rev-parse": "abc", "status": changed}
    monkeypatch.setattr(machine, "_git", lambda folder, verb, *_: answers[verb])
    monkeypatch.delenv("COVPROP_COMMIT", raising=False)
    assert machine.commit() == expected


def test_without_git_there_is_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert machine.commit() is None
