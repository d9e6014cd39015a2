from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from covprop.bench import memory, tricks
from covprop.bench.memory import cpu_peak
from covprop.bench.step import prepare
from covprop.bench.subject import Subject

MIB = 2**20
Work = Callable[[], object]


def mebibytes(count: int) -> torch.Tensor:
    return torch.ones(count * MIB // 4)


def test_peak_is_what_lives_at_once() -> None:
    kept = mebibytes(3)

    def work() -> None:
        a = mebibytes(4)
        b = mebibytes(2)
        del a
        c = mebibytes(1)  # 2 + 1 is below the peak of 4 + 2
        del b, c

    assert cpu_peak(work, [kept]) == 9 * MIB


def test_what_autograd_keeps_counts() -> None:
    weight = mebibytes(1).requires_grad_()

    def work() -> None:
        weight.grad = None
        y = weight.exp().exp().exp()  # each result is kept for the backward pass
        del y

    work()
    peak = cpu_peak(work, [weight])
    assert peak == 4 * MIB


def test_work_space_is_given_back_once_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """And before the peak is taken anew, which would count what is still held."""
    done: list[str] = []
    calls = ("synchronize", "empty_cache", "reset_peak_memory_stats")
    fake = {name: lambda name=name: done.append(name) for name in calls}
    monkeypatch.setattr(torch, "cuda", SimpleNamespace(is_available=lambda: True, **fake))
    monkeypatch.setattr(memory, "forget_workspaces", lambda: done.append("forget"))
    memory.settle()
    assert done == ["synchronize", "forget", "empty_cache", "reset_peak_memory_stats"]


def test_a_graph_is_recorded_between_two_clean_sheets(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def record(work: Work, *others: object, warmup: int, before: Work) -> Work:
        before()
        done.append("record")
        return work

    monkeypatch.setattr(tricks.cudagraph, "capture", record)
    monkeypatch.setattr(memory, "settle", lambda: done.append("settle"))
    monkeypatch.setattr(memory, "forget_workspaces", lambda: done.append("forget"))
    tricks.capture(lambda: None)
    assert done == ["settle", "record", "forget"]


@pytest.mark.gpu
@pytest.mark.parametrize("trick", ["eager", "captured"])
def test_a_step_costs_the_same_first_and_last(trick: str) -> None:
    """Whoever comes first in a process is not charged with what all others use too."""
    subject = Subject("preact_resnet18", width=8, norm="none", device=torch.device("cuda"))
    torch.ones(64, 64, device="cuda").mm(torch.ones(64, 64, device="cuda"))
    held = torch.cuda.memory_allocated()
    memory.forget_workspaces()  # as if nothing had run here
    assert held - torch.cuda.memory_allocated() > 4 * MIB
    first, _, last = (prepare(m, subject, 64, trick) for m in ("plain", "shared", "plain"))
    assert abs(first.bytes - last.bytes) < MIB


@pytest.mark.gpu
def test_forward_and_backward_share_work_space() -> None:
    """cuBLAS has some for each thread."""
    subject = Subject("lenet", width=4, image=8, channels=1, device=torch.device("cuda"))
    step = prepare("plain", subject, 16, "eager").run

    def taken(work: Work) -> int:
        memory.forget_workspaces()
        before = torch.cuda.memory_allocated()
        work()
        return torch.cuda.memory_allocated() - before

    one = taken(lambda: torch.ones(64, 64, device="cuda").mm(torch.ones(64, 64, device="cuda")))
    assert taken(step) < one + 2 * MIB


@pytest.mark.gpu
def test_a_graph_keeps_its_work_space() -> None:
    """A long product of few entries is split, and its parts are added in the work space."""
    a, b = torch.randn(64, 2**17, device="cuda"), torch.randn(2**17, 64, device="cuda")
    out = torch.empty(64, 64, device="cuda")
    replay = tricks.capture(lambda: torch.mm(a, b, out=out))
    expected = a @ b
    memory.settle()
    others = [torch.ones(8 * MIB, device="cuda") for _ in range(8)]  # whatever was given back
    out.zero_()
    replay()
    torch.testing.assert_close(out, expected, rtol=1e-3, atol=0.5)
    assert all(bool((tensor == 1).all()) for tensor in others)
