from collections.abc import Callable

import pytest
import torch
from torch import nn

from covprop.bench import certify as bench
from covprop.bench.certify import LOOP, LOOP_TF32, Side, Task, measure
from covprop.bench.certify_report import certify_report
from covprop.bench.machine import facts
from covprop.bench.timing import QUICK, Timing
from covprop.models import build


def task(n: int = 300) -> Task:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).eval()
    return Task(model, torch.rand(3, 1, 4, 4), 0.25, 3, n=n, n0=20)


def test_every_way_is_measured() -> None:
    said: list[str] = []
    sides = measure(task(), QUICK, product_size=32, say=said.append)
    names = [side.name for side in sides]
    assert names[:2] == [LOOP, "covprop, fp32"]
    assert names[2:] == [
        "covprop, fp32, sequential, radius within 0.05",
        "covprop, fp32, sequential, radius within 0.1",
        "covprop, fp32, sequential, at least 0.25?",  # 300 samples certify no more than 0.499
    ]
    loop, fixed, *sequential = sides
    assert loop.samples == fixed.samples == 320
    assert loop.images == 2
    assert all(20 < side.samples <= 320 and side.images == 3 for side in sequential)
    assert {side.flops for side in sides} == {2 * 16 * 3}
    assert len(said) == 4
    report = certify_report(sides, task(), "net", "untrained", facts(torch.device("cpu")))
    assert report.rows[0]["times_as_fast"] == {f"than {LOOP}": 1.0}
    assert any("run folder" in note for note in report.notes)
    assert list(report.figures()) == ["ways"]
    assert len(report.tables[0].columns) == len(report.tables[0].rows[0])


def test_the_ceiling_is_the_rate_of_the_products(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_a_second(sides: dict[str, Callable[[], object]], *_: object) -> dict[str, Timing]:
        for work in sides.values():
            work()
        return {name: Timing(2.0, 1.0, 3.0, 1, 1) for name in sides}

    monkeypatch.setattr(bench, "interleaved", in_a_second)
    sides = bench.measure(task(), QUICK, product_size=32)
    assert {side.ceiling for side in sides} == {bench.PRODUCTS * 2 * 32.0**3}


def test_share_of_the_ceiling_and_time_for_a_set() -> None:
    """10 images of 100 samples of 2 GFLOP in 4 s are 500 GFLOP/s."""
    side = Side("x", Timing(4.0, 4.0, 4.0, 1, 1), 100, 10, 2 * 10**9, 10.0**12, setup=30.0)
    assert side.seconds_a_sample == 0.004
    assert side.share == 0.5
    assert side.seconds(500) == 30 + 200


def test_times_as_fast_over_either_loop() -> None:
    def side(name: str, seconds: float, images: int, samples: int = 100) -> Side:
        return Side(name, Timing(seconds, seconds, seconds, 1, 1), samples, images, 1, 1.0)

    sides = [side(LOOP, 8.0, 2), side(LOOP_TF32, 4.0, 2), side("ours", 4.0, 10, 8000)]
    report = certify_report(sides, task(), "net", "of runs/a", facts(torch.device("cpu")))
    assert list(report.rows[2]["times_as_fast"].values()) == pytest.approx([10.0, 5.0])
    (table,) = report.tables
    shown = dict(zip(table.columns, table.rows[2], strict=True))
    assert (shown["µs a sample"], shown["seconds an image"]) == ("50", "0.4")
    assert shown[f"times as fast as the {LOOP}"] == "10.00"
    assert (shown["500 images"], shown["2,000 images"]) == ("3.3 min", "13.3 min")


class Replaying(Task):
    """A task whose device replays passes: the CPU stands in for a GPU."""

    replays = True  # type: ignore[assignment]


def test_the_ways_of_a_gpu() -> None:
    given = task(n=2000)
    sides = measure(
        Replaying(given.model, given.x, 0.25, 3, n=2000, batch=1024), QUICK, product_size=32
    )
    assert [side.name for side in sides[:5]] == [
        LOOP,
        LOOP_TF32,
        "covprop, bf16, plain passes",
        "covprop, bf16, replayed",
        "covprop, bf16, compiled and replayed",
    ]
    assert len(sides) == 9
    assert all(side.samples == 2100 for side in sides[:5])
    assert all(100 < side.samples <= 2100 and 0 < side.fill < 1 for side in sides[5:])
    assert all(side.setup > 0 for side in sides[3:])


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    model = build("preact_resnet18", num_classes=10, image_shape=(3, 32, 32), width=16)
    x = torch.rand(24, 3, 32, 32, device="cuda")
    small = Task(model.cuda().eval(), x, 0.25, 10, n=4096, compiling=False)
    sides = measure(small, QUICK, product_size=1024)
    by_name = {side.name: side for side in sides}
    assert LOOP_TF32 in by_name
    replayed = by_name["covprop, bf16, replayed"]
    assert replayed.samples == 4196
    assert replayed.images == 16
    assert 0 < replayed.share < 1
