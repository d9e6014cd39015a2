import math
import time
from collections.abc import Callable
from functools import partial

import pytest
import torch

from covprop.bench import step as bench
from covprop.bench import tricks
from covprop.bench.step import METHODS, Cell, measure, prepare, training_step
from covprop.bench.step_report import best, file_name, step_report
from covprop.bench.subject import Subject
from covprop.bench.timing import QUICK, Timing
from covprop.bench.tricks import TRICKS, TrainingStep, Unavailable, available
from covprop.errors import CovpropError, InvalidInput
from covprop.train.diverge import finite

TINY = Subject("lenet", width=2, image=8, channels=1)
FACTS: dict = {"device": "Test CPU", "cores": 2, "threads": 1, "load": 0.0, "torch": "0",
               "commit": None, "date": "today", "command": "covprop bench step"}  # fmt: skip


def timing(seconds: float) -> Timing:
    return Timing(seconds, 0.9 * seconds, 1.1 * seconds, 3, 1)


@pytest.mark.parametrize("method", METHODS)
def test_a_step_trains(method: str) -> None:
    base = training_step(method, TINY, 6)
    before = [p.detach().clone() for p in base.model.parameters()]
    base()
    moved = [not torch.equal(a, b) for a, b in zip(before, base.model.parameters(), strict=True)]
    assert all(moved)
    assert finite(base.model)


def test_the_loss_is_the_methods_own() -> None:
    base = training_step("consistency", TINY, 6)
    state = base.generator.get_state()
    loss = base.loss()
    base.generator.set_state(state)
    again = base.method(base.model, base.x, base.y, epoch=0, generator=base.generator)
    assert torch.equal(loss, again.per_sample.mean())


def test_shared_and_detached_differ_only_in_the_gradient() -> None:
    through, held = (training_step(name, TINY, 6) for name in ("shared", "shared-detached"))
    a, b = through.loss(), held.loss()
    assert torch.equal(a, b)
    a.backward()
    b.backward()
    first, second = (next(s.model.parameters()).grad for s in (through, held))
    assert first is not None
    assert second is not None
    assert not torch.allclose(first, second)


def test_every_cell_is_there_and_plain_is_the_measure() -> None:
    heard: list[Cell] = []
    names = ["plain", "shared", "macer"]
    cells = measure(TINY, names, [2, 4], ["eager", "captured"], QUICK, heard.append)
    assert cells == heard
    assert len(cells) == 3 * 2 * 2
    for cell in cells:
        if cell.trick == "captured":
            assert cell.time is None
            assert cell.note == "CUDA graphs need a GPU"
            assert math.isnan(cell.ratio)
        else:
            assert cell.time is not None
            assert cell.bytes is not None
            assert (cell.ratio == 1.0) == (cell.method == "plain")
    by_name = {(c.method, c.batch): c.bytes for c in cells if c.bytes}
    assert by_name["macer", 4] > by_name["shared", 4] > by_name["plain", 4]
    assert by_name["plain", 4] > by_name["plain", 2]


def test_a_new_trick_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def mine(step: TrainingStep) -> TrainingStep:
        seen.append(step.name)
        return step

    monkeypatch.setitem(TRICKS, "mine", mine)
    cells = measure(TINY, ["shared"], [2], ["mine"], QUICK)
    assert seen == ["plain", "shared"]
    assert [cell.trick for cell in cells] == ["mine", "mine"]


def test_all_are_held_against_the_fastest_plain_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(step: TrainingStep) -> Callable[[], None]:
        def run() -> None:
            time.sleep(0.2)
            step()

        return run

    monkeypatch.setitem(TRICKS, "slow", slow)
    cells = measure(TINY, ["plain", "shared"], [2], ["slow", "eager"], QUICK)
    ratios = {(cell.method, cell.trick): cell.ratio for cell in cells}
    assert ratios["plain", "eager"] == 1.0 < ratios["plain", "slow"]
    assert all(cell.plain is not None and cell.plain.median < 0.2 for cell in cells)


def test_a_failing_cell_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def picky(step: TrainingStep) -> TrainingStep:
        if step.name == "macer":
            raise RuntimeError("too\nlarge")
        return step

    monkeypatch.setitem(TRICKS, "picky", picky)
    cells = measure(TINY, ["plain", "macer", "shared"], [2], ["picky"], QUICK)
    assert [cell.note for cell in cells] == ["", "RuntimeError: too", ""]


def test_without_a_plain_step_there_is_nothing_to_compare() -> None:
    with pytest.raises(CovpropError, match="nothing to compare"):
        measure(TINY, ["shared"], [2], ["captured"], QUICK)


@pytest.mark.parametrize(
    ("names", "tricks", "expected"),
    [
        (["share"], ["eager"], 'no step to measure "share"'),
        (["shared"], ["eagre"], 'no trick "eagre"'),
    ],
)
def test_unknown_names_are_refused(names: list[str], tricks: list[str], expected: str) -> None:
    with pytest.raises(InvalidInput, match=expected):
        measure(TINY, names, [2], tricks, QUICK)


def test_tricks_that_do_not_go_together_say_why() -> None:
    with pytest.raises(Unavailable):
        TRICKS["compiled"](training_step("calibrated", TINY, 2))
    assert available(torch.device("cpu")) == ["eager"]
    assert set(available(torch.device("cuda"))) == set(TRICKS)


def test_a_loss_with_a_gradient_in_it_is_compiled_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tricks, "FlatStep", partial(tricks.FlatStep, backend=None))
    plain, flat = (training_step("linearized", TINY, 6) for _ in range(2))
    run = tricks.compiled(flat)  # which takes one step as it is
    run()
    plain()
    plain()
    for ours, theirs in zip(flat.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_memory_of_a_step_is_repeatable() -> None:
    assert prepare("shared", TINY, 4, "eager").bytes == prepare("shared", TINY, 4, "eager").bytes


def test_the_table_takes_the_fastest_of_each() -> None:
    cells = [
        Cell("plain", "eager", 8, timing(2.0), timing(1.0), 100),
        Cell("plain", "captured", 8, timing(1.0), timing(1.0), 120),
        Cell("macer", "captured", 8, timing(12.0), timing(1.0), 600),
        Cell("shared", "eager", 8, timing(3.0), timing(1.0), 150),
        Cell("shared", "captured", 8, timing(1.2), timing(1.0), 132),
        Cell("linearized", "eager", 8, note="out of memory"),
    ]
    assert best(cells, "shared", 8) is cells[4]
    assert best(cells, "linearized", 8) is None
    report = step_report(cells, TINY, ["eager", "captured"], QUICK, FACTS)
    row = next(row for row in report.tables[0].rows if row[1] == "shared")
    assert row[2:] == ["3000.0 (2700.0–3300.0)", "1200.0 (1080.0–1320.0)", "captured", "1.200",
                       "0", "1.100"]  # fmt: skip
    assert "Batch 8: MACER takes 10.00 times as long as shared." in report.notes
    assert "linearized eager 8: out of memory." in report.notes
    assert report.rows[-1]["over_plain"] is None


def test_reason_is_one_line() -> None:
    assert bench.reason(torch.cuda.OutOfMemoryError("CUDA out of …")) == "out of memory"
    assert bench.reason(ValueError()) == "ValueError: "


@pytest.mark.gpu
def test_every_trick_runs_on_a_gpu() -> None:
    subject = Subject("lenet", width=4, image=8, channels=1, device=torch.device("cuda"))
    cells = measure(subject, ["shared", "macer"], [8], list(TRICKS), QUICK)
    assert [cell.note for cell in cells] == [""] * 12


@pytest.mark.gpu
def test_a_captured_step_trains_like_an_eager_one() -> None:
    """The same start, noise aside the same work: weights move, and stay numbers."""
    subject = Subject("lenet", width=4, image=8, channels=1, device=torch.device("cuda"))
    base = training_step("shared", subject, 16)
    replay = TRICKS["captured"](base)
    before = [p.detach().clone() for p in base.model.parameters()]
    replay()
    torch.cuda.synchronize()
    for old, new in zip(before, base.model.parameters(), strict=True):
        assert not torch.equal(old, new)
    assert finite(base.model)


def test_files_of_different_measurements_have_different_names() -> None:
    everything = list(METHODS)
    names = {
        file_name(TINY, everything, [64]),
        file_name(TINY, everything, [64, 256]),
        file_name(TINY, ["plain", "shared"], [64]),
        file_name(TINY, ["plain", "macer"], [64]),
        file_name(TINY.but(norm="none"), everything, [64]),
        file_name(TINY.but(image=28), everything, [64]),
        file_name(TINY.but(device=torch.device("cuda")), everything, [64]),
    }
    assert len(names) == 7
    assert file_name(TINY, ["plain", "shared"], [64, 256]) == "lenet_w2_8px_fp32_b64-256_shared"
