from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from covprop.bench import layers as bench
from covprop.bench.layers import Depth, linear_fit
from covprop.bench.layers_report import layers_report
from covprop.bench.machine import facts
from covprop.bench.subject import Subject
from covprop.bench.timing import QUICK, Timing
from covprop.propagate.settings import Settings
from covprop.propagate.step import Step

TINY = Subject("preact_resnet18", width=2, image=8, norm="none")


def point(layers: int, seconds: float) -> Depth:
    return Depth("net", layers, "forward", 0, Timing(seconds, seconds, seconds, 1, 1))


def test_fit_finds_a_line_and_says_how_well_it_fits() -> None:
    fit = linear_fit([point(k, 0.5 + 0.25 * k) for k in (20, 36, 100)])
    assert fit.slope == pytest.approx(0.25)
    assert fit.start == pytest.approx(0.5)
    assert fit.r_squared == pytest.approx(1.0)
    work = [Depth("net", 1, "forward", 10**k, point(1, 10.0**k).time) for k in range(4)]
    assert linear_fit(work, "flops").r_squared == pytest.approx(1.0)
    layers, seconds = [1, 2, 3, 4], [1.0, 3.0, 2.0, 4.0]
    bent = linear_fit([point(k, s) for k, s in zip(layers, seconds, strict=True)])
    assert bent.r_squared == pytest.approx(np.corrcoef(layers, seconds)[0, 1] ** 2)
    again = [bent.start + bent.slope * k + r for k, r in zip(layers, bent.residuals, strict=True)]
    assert again == pytest.approx(seconds)


def test_layers_are_counted_as_usual() -> None:
    for name, expected in (("preact_resnet18", 18 + 3), ("preact_resnet34", 34 + 3)):
        assert bench.weighted(bench.propagator(TINY.but(model=name))) == expected
    assert bench.weighted(bench.propagator(Subject("lenet", image=8, channels=1))) == 5
    normed = TINY.but(norm="batch")  # whose weights are no layers
    assert bench.weighted(bench.propagator(normed)) == 18 + 3


def test_flops_of_a_product() -> None:
    a, b = torch.ones(3, 5), torch.ones(5, 7)
    assert bench.count_flops(lambda: a @ b) == 2 * 3 * 5 * 7


def test_every_pass_depth_and_layer_is_measured() -> None:
    found = [bench.passes(TINY, batch, QUICK) for batch in (1, 2)]
    assert list(found[0].times) == [bench.FORWARD, bench.SIGMA_PASS, bench.MEAN_PASS, bench.BOTH]
    assert found[0].ratio(bench.FORWARD) == 1.0
    depths = bench.depth(TINY, bench.DEPTHS[:2], QUICK)
    assert [d.layers for d in depths] == [21, 37, 21, 37]
    assert depths[0].flops < depths[1].flops < depths[3].flops
    # Backward: dW of every layer (another product of the second's size) and dΣ (two more), less
    # what the constant covariance at the input spares.
    assert 2 * depths[0].flops < depths[2].flops < 3 * depths[0].flops
    each = bench.by_layer(TINY, QUICK)
    assert [one.name for one in each][:2] == ["0", "1.stem"]
    assert each[-1].kind == "Linear"
    assert each[-1].channels == 10
    plain, shared = bench.memory_ratio(TINY, 2)
    assert 0 < plain < shared
    report = layers_report(found, {2: (plain, shared)}, depths, each, TINY, facts(TINY.device))
    assert len(report.tables) == 5
    assert any("R² = 1.0000" in note for note in report.notes)  # a line through two points
    assert set(report.figures()) == {"batch", "depth", "operations"}
    fits = [row for row in report.rows if "fit" in row]
    assert [(row["work"], row["fit"]) for row in fits] == [
        ("forward", "layers"), ("forward", "flops"),
        ("forward and backward", "layers"), ("forward and backward", "flops"),
    ]  # fmt: skip


def test_cells_have_the_units_of_their_columns() -> None:
    def depth(layers: int, flops: int, seconds: float) -> Depth:
        time = Timing(seconds, seconds, seconds, 1, 1)
        return Depth(f"net{layers}", layers, "forward", flops, time)

    depths = [depth(10, 2 * 10**9, 0.004), depth(20, 4 * 10**9, 0.006)]
    report = layers_report([], {8: (2**20, 3 * 2**20)}, depths, [], TINY, facts(TINY.device))
    _, memory, by_depth, fits = report.tables
    assert memory.rows == [["8", "1", "3", "3.000"]]
    shown = dict(zip(by_depth.columns, by_depth.rows[1], strict=True))
    assert shown["ms"].startswith("6.00 ")
    assert (shown["µs a layer"], shown["GFLOP"], shown["GFLOP/s"]) == ("300.0", "4.00", "667")
    slopes = [dict(zip(fits.columns, row, strict=True))["slope"] for row in fits.rows]
    assert slopes == ["200.00 µs a layer", "1000.00 µs a GFLOP"]
    assert {row[3] for row in fits.rows} == {"+2.000"}  # milliseconds


class Waits(TorchDispatchMode):
    """Fails where a GPU's result would be read back to the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        names = ("_local_scalar_dense", "index_fill.int_Tensor", "nonzero", "equal")
        assert not str(func).startswith(tuple(f"aten.{name}" for name in names)), func
        return func(*args, **kwargs or {})


def test_nothing_that_is_captured_waits_for_the_gpu() -> None:
    prop = bench.propagator(TINY)
    with Waits():
        bench.sigma_pass_and_backward(prop, TINY)
        with pytest.raises(AssertionError, match="index_fill"):
            torch.autograd.grad(bench.sigma_pass(prop, TINY).trace(), list(prop.parameters())[:1])


def test_what_cannot_be_captured_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(work: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(bench, "capture", refuse)
    sides: dict[str, Callable[[], object]] = {"one": int}
    assert bench.as_graphs(sides) == (sides, False)


@pytest.mark.gpu
def test_every_depth_is_captured_on_a_gpu() -> None:
    depths = bench.depth(TINY.but(device=torch.device("cuda")), bench.DEPTHS, QUICK)
    assert len(depths) == 8
    assert all(one.captured for one in depths)


@pytest.fixture
def precisions(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Of every covariance rule that is applied: the precision of products, and autocast."""
    seen: list[tuple[str, bool]] = []
    plain = Step.covariance

    def spy(self: Step, layer: Any, covs: Any, values: Any, settings: Settings) -> torch.Tensor:
        out = plain(self, layer, covs, values, settings)
        if not out.is_meta:  # a look at the shapes
            seen.append((settings.products, torch.is_autocast_enabled(out.device.type)))
        return out

    monkeypatch.setattr(Step, "covariance", spy)
    return seen


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_layers_are_timed_in_the_precision_of_the_whole_pass(
    precisions: list[tuple[str, bool]], device: str
) -> None:
    subject = TINY.but(device=torch.device(device))
    bench.sigma_pass(bench.propagator(subject), subject)
    whole = set(precisions)
    precisions.clear()
    bench.by_layer(subject, QUICK)
    assert set(precisions) == whole


def test_layers_of_a_half_precision_pass_take_products_in_half(
    precisions: list[tuple[str, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Subject, "precision", "bf16")  # as on a GPU
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda name: None)  # would stay
    layers = bench.by_layer(TINY, QUICK)
    timed = precisions[len(layers) :]  # before them the pass that gives each its input
    assert len(timed) >= len(layers)
    assert set(timed) == {("bfloat16", False)}


def test_by_layer_measures_the_propagators_own_rules() -> None:
    """All rules are timed, none twice, whatever the model does besides."""
    prop = bench.propagator(TINY)
    noisy = [step.name for step in prop.plan.steps if step.rule is not None]
    assert [one.name for one in bench.by_layer(TINY, QUICK)] == noisy
