import torch
from torch import nn

from covprop.bench import certify as bench
from covprop.bench.certify import LOOP, Side, Task, measure
from covprop.bench.certify_report import certify_report
from covprop.bench.machine import facts
from covprop.bench.timing import QUICK, Timing
from covprop.certify.noise import block_size


def task(n: int = 300) -> Task:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).eval()
    return Task(model, torch.rand(2, 1, 4, 4), 0.25, 3, n=n, n0=20)


def test_every_way_is_measured() -> None:
    sides = measure(task(), QUICK, product_size=32)
    names = [side.name for side in sides]
    assert names == [LOOP, "covprop, fp32", "covprop, fp32, sequential"]
    loop, fixed, sequential = sides
    assert loop.samples == fixed.samples == 320
    assert 20 < sequential.samples <= 320
    assert {side.flops for side in sides} == {2 * 16 * 3}
    report = certify_report(sides, task(), "net", False, facts(torch.device("cpu")))
    assert report.rows[0]["times_as_fast"] == 1.0
    assert any("untrained" in note for note in report.notes)
    assert list(report.figures()) == ["ways"]


def test_share_of_the_ceiling() -> None:
    """10 images of 100 samples of 2 GFLOP in 4 s are 500 GFLOP/s."""
    side = Side("x", Timing(4.0, 4.0, 4.0, 1, 1), 100, 10, 2 * 10**9, 10.0**12)
    assert side.seconds_a_sample == 0.004
    assert side.share == 0.5


def test_the_compiled_model_sees_one_shape_and_gives_the_same(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    seen = []

    def spy(model: nn.Module, dynamic: bool) -> object:
        assert not dynamic

        def run(x: torch.Tensor) -> torch.Tensor:
            seen.append(len(x))
            return model(x)

        return run

    monkeypatch.setattr(torch, "compile", spy)
    given = task()
    block = block_size((1, 4, 4))
    network = bench.compiled(given)
    for size in (2, block, given.batch // block * block):
        x = torch.rand(size, 1, 4, 4)
        assert torch.allclose(network(x), given.model(x))
    assert set(seen) == {given.batch // block * block}
