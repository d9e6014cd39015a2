"""What a model changes in place under one name and reads under another."""

from collections.abc import Callable

import pytest
from nets import Written
from torch import Tensor, nn

from covprop import UnsupportedModel, check

SHAPE = (4, 3, 3)


def view(net: nn.Module, x: Tensor) -> Tensor:
    h = net.inner(x)
    flat = h.view(h.shape[0], -1)
    flat += 1
    return h.flatten(1)


def whole_of_a_chunk(net: nn.Module, x: Tensor) -> Tensor:
    h = net.inner(x)
    first, _ = h.chunk(2, 1)
    first += 1
    return h.flatten(1)


@pytest.mark.parametrize("forward", [view, whole_of_a_chunk])
def test_a_view_that_is_read_later_is_refused(
    forward: Callable[[nn.Module, Tensor], Tensor],
) -> None:
    with pytest.raises(UnsupportedModel, match="changes, in place, a view"):
        check(Written(forward, 36), SHAPE)
