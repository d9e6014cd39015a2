"""Optimizer groups, and the running average against its closed form."""

from pathlib import Path

import pytest
import torch
from torch import nn

from covprop.train.optimize import Average, optimizer, restore, set_lr, state_of
from covprop.train.options import TrainOptions


def test_everything_is_decayed_unless_told_otherwise() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    one = optimizer(net, TrainOptions(epochs=1, weight_decay=0.1))
    assert [len(g["params"]) for g in one.param_groups] == [4]
    two = optimizer(net, TrainOptions(epochs=1, weight_decay=0.1, decay_all=False))
    assert [(len(g["params"]), g["weight_decay"]) for g in two.param_groups] == [(1, 0.1), (3, 0.0)]


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_is_the_update_rule(nesterov: bool) -> None:
    net = nn.Linear(1, 1, bias=False)
    w = net.weight.item()
    options = TrainOptions(1, lr=0.5, momentum=0.8, weight_decay=0.1, nesterov=nesterov)
    sgd = optimizer(net, options)
    velocity = 0.0
    for _ in range(3):
        sgd.zero_grad()
        net(torch.ones(1, 1)).sum().backward()
        sgd.step()
        slope = 1 + 0.1 * w
        velocity = 0.8 * velocity + slope
        w -= 0.5 * (slope + 0.8 * velocity if nesterov else velocity)
    assert net.weight.item() == pytest.approx(w, rel=1e-6)


def test_frozen_parameters_are_left_out() -> None:
    net = nn.Linear(2, 2)
    net.bias.requires_grad_(False)
    adam = optimizer(net, TrainOptions(epochs=1, optimizer="adamw", betas=(0.5, 0.6)))
    assert isinstance(adam, torch.optim.AdamW)
    assert [len(g["params"]) for g in adam.param_groups] == [1]
    assert adam.param_groups[0]["betas"] == (0.5, 0.6)


def test_average() -> None:
    net = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))
    average = Average(net, 0.4)
    expected = net[0].weight.item()
    for step in range(1, 8):
        nn.init.constant_(net[0].weight, float(step))
        net[1].num_batches_tracked += 1
        average.advance()
        average.mix(net)
        decay = min(0.4, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * step
    mean = average.model[0].weight
    assert mean.item() == pytest.approx(expected, rel=1e-6)
    assert average.model[1].num_batches_tracked == 7
    assert not mean.requires_grad


def test_adamw_without_decay_is_adam() -> None:
    """What the noisy-label literature trains with, its first beta changed on the way."""
    one, two = nn.Linear(3, 2), nn.Linear(3, 2)
    two.load_state_dict(one.state_dict())
    mine = optimizer(one, TrainOptions(1, optimizer="adamw", lr=0.01, weight_decay=0.0))
    adam = torch.optim.Adam(two.parameters(), lr=0.01)
    x = torch.randn(5, 3)
    for beta in (0.9, 0.9, 0.1):
        for net, opt in ((one, mine), (two, adam)):
            opt.param_groups[0]["betas"] = (beta, 0.999)
            opt.zero_grad()
            net(x).square().sum().backward()
            opt.step()
    torch.testing.assert_close(one.weight, two.weight)


def test_a_state_goes_from_one_device_to_another(tmp_path: Path) -> None:
    """A plain learning rate here, a tensor there, and back; what was learned comes along."""
    torch.manual_seed(0)
    net, x = nn.Linear(3, 2), torch.randn(5, 3)
    plain = optimizer(net, TrainOptions(epochs=1, lr=0.5, decay_all=False))
    there = torch.optim.SGD(
        [{"params": [net.weight]}, {"params": [net.bias]}], lr=torch.tensor(0.25), momentum=0.9
    )
    back = optimizer(net, TrainOptions(epochs=1, lr=0.125, decay_all=False))
    net(x).square().sum().backward()
    plain.step()
    for source, target in ((plain, there), (there, back)):
        torch.save(state_of(source), tmp_path / "state.pt")
        state = torch.load(tmp_path / "state.pt", weights_only=True)
        assert all(isinstance(group["lr"], float) for group in state["param_groups"])
        restore(target, state)
    one, two = there.param_groups
    assert one["lr"] is two["lr"]
    assert one["lr"].item() == 0.25
    assert [group["lr"] for group in back.param_groups] == [0.125, 0.125]
    assert [group["weight_decay"] for group in there.param_groups] == [5e-4, 0.0]
    for p in net.parameters():
        assert p.grad is not None
        torch.testing.assert_close(
            back.state[p]["momentum_buffer"], plain.state[p]["momentum_buffer"]
        )
    rate = one["lr"]
    set_lr(there, 2.0)
    assert one["lr"] is rate  # a recorded step reads it where it was
    set_lr(back, 2.0)
    assert one["lr"].item() == back.param_groups[1]["lr"] == 2.0


def test_the_average_is_that_of_the_formula() -> None:
    """Weights and statistics by d = min(0.2, (1 + t) / (10 + t)), counters as they are."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    average = Average(net, 0.2)
    share = average.share
    expected = {key: value.clone() for key, value in net.state_dict().items()}
    for step in range(1, 13):
        nn.init.normal_(net[0].weight)
        net[1].running_mean.normal_()
        net[1].num_batches_tracked += 1
        average.advance()
        average.mix(net)
        decay = min(0.2, (1 + step) / (10 + step))
        for key, value in net.state_dict().items():
            whole = not value.is_floating_point()
            expected[key] = value if whole else decay * expected[key] + (1 - decay) * value
    found = average.model.state_dict()
    assert found.keys() == expected.keys()
    for key, value in found.items():
        torch.testing.assert_close(value, expected[key])
    assert average.share is share  # a recorded step reads it where it was


def test_tied_weights_are_averaged_once() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    net[2].weight = net[0].weight
    average, expected = Average(net, 0.9), net[0].weight.detach().clone()
    for step in range(1, 4):
        nn.init.constant_(net[0].weight, float(step))
        average.advance()
        average.mix(net)
        decay = (1 + step) / (10 + step)
        expected = decay * expected + (1 - decay) * step
    torch.testing.assert_close(average.model[0].weight, expected)
    assert average.model[2].weight is average.model[0].weight
