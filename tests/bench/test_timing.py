import time

import pytest
import torch

from covprop.bench.timing import QUICK, Effort, interleaved, seconds_of, summary
from covprop.errors import InvalidInput

CPU = torch.device("cpu")


def test_sides_alternate_after_their_warm_up() -> None:
    order: list[str] = []
    effort = Effort(warmup=2, rounds=3, sample_seconds=0.0)
    times = interleaved({s: lambda s=s: order.append(s) for s in "ab"}, CPU, effort)
    assert order == ["a", "a", "b", "b"] + ["a", "b"] * 3
    assert {t.rounds for t in times.values()} == {3}
    assert {t.calls for t in times.values()} == {1}


def test_a_short_call_is_repeated_within_a_sample() -> None:
    count = 0

    def work() -> None:
        nonlocal count
        count += 1
        time.sleep(0.001)

    times = interleaved({"work": work}, CPU, Effort(warmup=0, rounds=2, sample_seconds=0.01))
    calls = times["work"].calls
    assert 1 <= calls <= 10  # a sleep lasts at least as long as asked
    assert count == 1 + 2 * calls


def test_seconds_are_those_of_one_call() -> None:
    assert 0.01 <= seconds_of(lambda: time.sleep(0.01), CPU, calls=20) < 0.1


def test_summary_is_median_and_deciles() -> None:
    found = summary([float(k) for k in range(101)], calls=7)
    assert (found.low, found.median, found.high) == (10.0, 50.0, 90.0)
    assert found.as_dict()["calls"] == 7


def test_no_rounds_are_refused() -> None:
    with pytest.raises(InvalidInput, match="at least one round"):
        Effort(rounds=0)
    assert QUICK.rounds > 0
