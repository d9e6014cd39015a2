"""The selection rules that several methods share."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from covprop.errors import InvalidInput
from covprop.noisy import METHODS, build
from covprop.noisy.base import Task, forget_rate, known_rate, over, smallest


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=30, unique=True), st.floats(0, 1))
def test_smallest_is_the_head_of_the_sorted_list(values: list[int], share: float) -> None:
    mask = smallest(torch.tensor(values, dtype=torch.float64), share)
    count = max(1, int(share * len(values) + 1e-6))
    assert sorted(v for v, m in zip(values, mask, strict=True) if m) == sorted(values)[:count]


def test_a_share_that_is_not_exact_in_binary() -> None:
    assert int(smallest(torch.arange(10.0), 1 - 0.1).sum()) == 9
    assert int(smallest(torch.arange(100.0), 1 - 0.45).sum()) == 55
    assert 0.29 * 100 < 29, "the product falls short"
    assert int(smallest(torch.arange(100.0), 0.29).sum()) == 29


def test_over_is_the_mean_of_the_kept() -> None:
    losses = torch.tensor([1.0, 2.0, 3.0, 10.0])
    kept = torch.tensor([True, False, True, False])
    assert float(over(kept, losses).mean()) == 2.0
    assert over(torch.zeros(4, dtype=torch.bool), losses).tolist() == [0] * 4


def test_forget_rate_rises_to_the_rate() -> None:
    assert [forget_rate(0.5, e, 4) for e in range(6)] == [0, 0.125, 0.25, 0.375, 0.5, 0.5]
    assert forget_rate(0.5, 0, 0) == 0.5


def test_a_rate_nobody_knows() -> None:
    task = Task(4, 3, None, 0.25, (1, 1, 1), torch.nn.Identity)
    assert known_rate(0.3, task, "mentornet") == 0.3
    for name in ("mentornet", "coteaching"):
        with pytest.raises(InvalidInput, match=f'"{name}" needs the share of wrong labels'):
            build(name, task=task)


def test_an_unknown_method() -> None:
    task = Task(4, 3, None, 0.25, (1, 1, 1), torch.nn.Identity)
    with pytest.raises(InvalidInput, match='did you mean "coteaching"'):
        build("co-teaching", task=task)
    assert set(METHODS) == {
        *("plain", "bootstrap", "smodel", "decoupling"),
        *("mentornet", "coteaching", "truncated", "radius"),
    }
