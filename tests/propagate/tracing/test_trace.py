"""What a trace finds in a model, and that it leaves nothing there."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covprop import Propagator, check, fix, margin


class Keeping(nn.Module):
    """Keeps its features, and what it finds at its first call."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.last = nn.Conv2d(1, 4, 3), nn.Linear(4, 3)
        self.width: int | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.width is None:
            self.width = x.shape[-1]
        self.conv.features = self.conv(x / self.width)
        return self.last(F.relu(self.conv.features).mean((2, 3)))


X = torch.rand(2, 1, 6, 6, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("asked", [check, lambda net, shape: Propagator(net, 0.1, shape)])
def test_what_forward_keeps_is_never_left_by_a_trace(asked: Callable[..., object]) -> None:
    net = Keeping()
    asked(net, (1, 6, 6))
    assert net.width is None
    assert not hasattr(net.conv, "features")
    logits = net(X)
    features = net.conv.features
    asked(net, (1, 6, 6))
    assert net.width == 6
    assert net.conv.features is features
    assert torch.equal(net(X), logits)


@pytest.mark.parametrize(
    "asked",
    [
        lambda net: fix(net)(X),
        lambda net: margin(net, X, 0.1, "dense").radius,
    ],
)
def test_what_forward_kept_with_its_graph_is_in_no_copys_way(
    asked: Callable[[nn.Module], Tensor],
) -> None:
    fresh, used = Keeping(), Keeping()
    used(X)
    assert torch.equal(asked(used), asked(fresh))
