"""Learning rates against torch's own schedulers, stepped from the start."""

import warnings
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from covprop.train.options import TrainOptions
from covprop.train.schedule import betas_at, lr_at

STEPS = 7


def _torch_rates(make: Any, total: int, lr: float = 0.2) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
    scheduler = make(optimizer)
    rates = []
    for _ in range(total):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        with warnings.catch_warnings():
            # SequentialLR warns about its own use of an argument.
            warnings.simplefilter("ignore", UserWarning)
            scheduler.step()
    return rates


def _rates(**options: Any) -> list[float]:
    settings = TrainOptions(lr=0.2, **options)
    return [lr_at(settings, step, STEPS) for step in range(settings.epochs * STEPS)]


def test_step() -> None:
    expected = _torch_rates(
        lambda o: lr_scheduler.MultiStepLR(o, [3 * STEPS, 5 * STEPS], gamma=0.1), 6 * STEPS
    )
    assert _rates(epochs=6, milestones=(3, 5)) == pytest.approx(expected)


def test_cosine() -> None:
    expected = _torch_rates(lambda o: lr_scheduler.CosineAnnealingLR(o, 4 * STEPS), 4 * STEPS)
    assert _rates(epochs=4, schedule="cosine") == pytest.approx(expected)


@pytest.mark.parametrize("peak", [0.3, 0.5])
def test_one_cycle(peak: float) -> None:
    total = 10 * STEPS
    expected = _torch_rates(
        lambda o: lr_scheduler.OneCycleLR(
            o, 0.2, total_steps=total, pct_start=peak, cycle_momentum=False
        ),
        total,
    )
    assert _rates(epochs=10, schedule="one-cycle", peak=peak) == pytest.approx(expected)


def test_one_cycle_of_a_single_step_has_a_rate() -> None:
    assert lr_at(TrainOptions(epochs=1, lr=0.2, schedule="one-cycle"), 0, 1) > 0


def test_warm_up_then_cosine() -> None:
    def make(optimizer: Any) -> Any:
        rise = lr_scheduler.LinearLR(optimizer, 1 / (2 * STEPS), 1.0, total_iters=2 * STEPS - 1)
        fall = lr_scheduler.CosineAnnealingLR(optimizer, 4 * STEPS)
        return lr_scheduler.SequentialLR(optimizer, [rise, fall], [2 * STEPS])

    expected = _torch_rates(make, 6 * STEPS)
    rates = _rates(epochs=6, schedule="cosine", warmup_epochs=2)
    assert rates[: 2 * STEPS] == pytest.approx(expected[: 2 * STEPS])
    assert rates[2 * STEPS :] == pytest.approx(expected[2 * STEPS :])


def test_constant_with_warm_up_of_half_an_epoch() -> None:
    rates = _rates(epochs=1, schedule="constant", warmup_epochs=0.5)
    assert rates == pytest.approx([0.2 * min(1, (s + 1) / 3.5) for s in range(STEPS)])


def test_step_and_linear_rise_too() -> None:
    rise = [(s + 1) / (2 * STEPS) for s in range(2 * STEPS)] + [1.0] * (4 * STEPS)
    for options in ({"schedule": "step", "milestones": (1, 4)}, {"schedule": "linear"}):
        cold, warm = _rates(epochs=6, **options), _rates(epochs=6, warmup_epochs=2, **options)
        assert warm == pytest.approx([r * rate for r, rate in zip(rise, cold, strict=True)])


def test_linear_falls_to_zero_from_its_epoch() -> None:
    """Against torch's LambdaLR with the line written out."""

    def share(step: int) -> float:
        return 1.0 if step < 2 * STEPS else (6 * STEPS - step) / (4 * STEPS)

    expected = _torch_rates(lambda o: lr_scheduler.LambdaLR(o, share), 6 * STEPS)
    rates = _rates(epochs=6, schedule="linear", decay_from=2)
    assert rates == pytest.approx(expected)
    assert rates[2 * STEPS - 1 : 2 * STEPS + 1] == [0.2, 0.2]
    assert rates[-1] == pytest.approx(0.2 / (4 * STEPS))


def test_the_first_beta_changes_at_that_epoch() -> None:
    options = TrainOptions(6, schedule="linear", decay_from=2, late_beta1=0.1)
    found = [betas_at(options, step, STEPS) for step in (0, 2 * STEPS - 1, 2 * STEPS, 41)]
    assert found == [(0.9, 0.999)] * 2 + [(0.1, 0.999)] * 2
    assert betas_at(TrainOptions(6), 41, STEPS) == (0.9, 0.999)
