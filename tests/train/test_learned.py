from pathlib import Path

import pytest
import torch
from torch import nn

from covprop.errors import InvalidInput
from covprop.train.learned import Learned
from covprop.train.optimize import Average


def trained(steps: int, outputs: int = 2, averaged: bool = True) -> Learned:
    torch.manual_seed(steps)
    model, memory = nn.Linear(3, outputs), nn.BatchNorm1d(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    average = Average(model, 0.5) if averaged else None
    for _ in range(steps):
        optimizer.zero_grad()
        model(memory(torch.randn(4, 3))).square().mean().backward()
        optimizer.step()
        if average:
            average.advance()
            average.mix(model)
    return Learned(model, optimizer, average, {"memory": memory, "weights": None})


@pytest.mark.parametrize("averaged", [True, False])
def test_what_is_restored_is_what_was_saved(averaged: bool) -> None:
    old, new = trained(3, averaged=averaged), trained(0, averaged=averaged)
    state = old.state()
    assert set(state) == {"model", "optimizer", "average", "average_steps", "memory"}
    new.restore(state, Path("state.pt"))
    torch.testing.assert_close(new.state(), state, rtol=0, atol=0)
    assert new.state()["average_steps"] == (3 if averaged else 0)
    assert torch.equal(new.result.weight, old.result.weight)
    assert (new.result is new.model) != averaged


def test_the_state_of_another_model_is_one_sentence() -> None:
    with pytest.raises(InvalidInput, match=r"state\.pt belongs to another model"):
        trained(0).restore(trained(1, outputs=5).state(), Path("state.pt"))
