import threading
import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import covprop
from covprop import data
from covprop.errors import InvalidInput
from covprop.explore.certifier import Certifier, Job, Turns
from covprop.explore.compute import Explorer


def finished(certifier: Certifier, job: int, seconds: float = 30) -> dict[str, Any]:
    end = time.monotonic() + seconds
    while (found := certifier.status(job))["state"] == "running":
        assert time.monotonic() < end
        time.sleep(0.01)
    return found


def test_a_certificate_is_that_of_certify(explorer: Explorer, model: nn.Module) -> None:
    certifier = Certifier(explorer, Turns())
    digits = data.load("digits", "test")
    batch = next(data.batches(digits, 360, epoch=0, seed=0, device="cpu", shuffle=False))
    for index in (2, 5):
        job = certifier.start(index, 0.25, 1000, 0.01)["job"]
        found = finished(certifier, job)
        x = batch.x[index]
        expected = covprop.certify(
            model, x, sigma=0.25, n0=100, n=1000, alpha=0.01, num_classes=10, index=index
        )
        assert found["state"] == "done"
        assert found["prediction"] == int(expected.prediction)
        assert found["certified_radius"] == pytest.approx(float(expected.radius), rel=1e-4)
        assert found["p_lower"] == pytest.approx(float(expected.p_lower), rel=1e-4)
        assert found["count"] == int(expected.count)
        assert found["progress"] == 1.0
        assert found["label"] == int(batch.y[index])
        assert (found["index"], found["sigma"], found["n"], found["n0"], found["alpha"]) == (
            index, 0.25, 1000, 100, 0.01,
        )  # fmt: skip


class Gate(nn.Module):
    """A model that waits at a gate in every pass."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)
        self.gate, self.passes = threading.Event(), 0
        self.gate.set()

    def forward(self, x: Tensor) -> Tensor:
        assert self.gate.wait(20)
        self.passes += 1
        return self.linear(x.flatten(1))


@pytest.fixture
def gate() -> Gate:
    torch.manual_seed(1)
    return Gate().eval()


def certifier_of(gate: Gate) -> Certifier:
    return Certifier(Explorer(gate, data.load("digits", "test"), 0.25), Turns())


def test_a_radius_shows_only_when_it_is_certified(gate: Gate) -> None:
    certifier = certifier_of(gate)
    gate.gate.clear()
    job = certifier.start(0, 0.25, 10_000, 0.001)
    assert job["state"] == "running"
    assert job["progress"] == 0
    assert "certified_radius" not in certifier.status(job["job"])
    gate.gate.set()
    assert "certified_radius" in finished(certifier, job["job"])


def test_a_job_that_ends_while_it_is_told_of_is_told_as_one_or_the_other() -> None:
    class Ending(Job):
        """Running when first looked at, done at the second look."""

        looks = 0

        @property
        def state(self) -> str:
            self.looks += 1
            return "running" if self.looks == 1 else "done"

        @state.setter
        def state(self, given: str) -> None:
            pass

    x, model = torch.zeros(1, 1, 1), nn.Sequential(nn.Flatten(), nn.Linear(1, 2))
    certificate = covprop.certify(model, x, sigma=0.25, n=1000, num_classes=2)
    job = Ending(1, 0, 0, 0.25, 1000, 0.001, 1000, certificate=certificate)
    first, then = job.status(), job.status()
    assert (first["state"], "certified_radius" in first) == ("running", False)
    assert (then["state"], "certified_radius" in then) == ("done", True)


def test_another_certificate_stops_the_one_before(gate: Gate) -> None:
    certifier = certifier_of(gate)
    gate.gate.clear()
    first = certifier.start(0, 0.25, 1_000_000, 0.001)["job"]
    second = certifier.start(1, 0.25, 1000, 0.001)["job"]
    gate.gate.set()
    assert finished(certifier, second)["index"] == 1
    assert certifier.status(first) == {"job": first, "state": "stopped"}
    passes = gate.passes
    time.sleep(0.05)
    assert gate.passes == passes  # the first one really ended


def test_stop_and_close_end_it(gate: Gate) -> None:
    certifier = certifier_of(gate)
    for end in (lambda job: certifier.stop(job), lambda job: certifier.close()):
        job = certifier.start(0, 0.25, 1_000_000, 0.001)["job"]
        end(job)
        assert finished(certifier, job)["state"] == "stopped"


def test_no_module_is_called_out_of_turn(
    explorer: Explorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While torch.fx traces, it catches every module's call in every thread, as here."""
    turns = Turns()
    certifier = Certifier(explorer, turns)

    def caught(*args: Any) -> Any:
        raise NameError("module is not installed as a submodule")

    with turns.front(), monkeypatch.context() as tracing:
        tracing.setattr(nn.Module, "__call__", caught)
        job = certifier.start(0, 0.25, 1000, 0.001)["job"]
        time.sleep(0.2)  # long enough to come to the first call
    assert finished(certifier, job)["state"] == "done"


def test_slips_are_refused_before_anything_starts(gate: Gate) -> None:
    certifier = certifier_of(gate)
    with pytest.raises(InvalidInput, match="cannot reach alpha"):
        certifier.start(0, 0.25, 5, 0.001)
    with pytest.raises(InvalidInput, match="no image 360"):
        certifier.start(360, 0.25, 1000, 0.001)
    with pytest.raises(InvalidInput, match="no certificate 1"):
        certifier.status(1)


def test_a_failure_is_told_and_not_lost(
    gate: Gate, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    certifier = certifier_of(gate)

    def broken(x: Tensor) -> Tensor:
        raise ZeroDivisionError("broken on purpose")

    monkeypatch.setattr(gate, "forward", broken)
    found = finished(certifier, certifier.start(0, 0.25, 1000, 0.001)["job"])
    assert found["state"] == "failed"
    assert "terminal" in found["error"]
    assert "broken on purpose" in capsys.readouterr().err


def test_what_is_waited_for_goes_first() -> None:
    """While the background works without pause, the front gets its turn after one piece."""
    turns, order = Turns(), []
    end, started = threading.Event(), threading.Event()

    def background() -> None:
        while not end.is_set():
            with turns.background():
                order.append("piece")
                started.set()
                time.sleep(0.002)

    thread = threading.Thread(target=background)
    thread.start()
    assert started.wait(5)
    for _ in range(5):
        before = len(order)
        with turns.front():
            assert len(order) - before <= 2  # the piece under way, and one that slipped in
            at_start = len(order)
            time.sleep(0.01)
            assert len(order) == at_start  # never two at once
    end.set()
    thread.join()
    turns.finish(1)
