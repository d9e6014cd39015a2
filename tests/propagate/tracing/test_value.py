"""To forward a value of the trace is a tensor: it has other names, a type and attributes."""

from collections.abc import Callable

import pytest
import torch
from nets import Written
from oracles import relative
from torch import Tensor, nn

import covprop
from covprop import PAPER, Propagator, UnsupportedModel, check

SHAPE = (4, 3, 3)
Forward = Callable[[nn.Module, Tensor], Tensor]


def under_two_names(net: nn.Module, x: Tensor) -> Tensor:
    h = net.inner(x)
    skip = h
    h += 0.5
    h *= 3
    return (h + skip).flatten(1)


def kept_in_a_list(net: nn.Module, x: Tensor) -> Tensor:
    x = net.inner(x)
    kept = [x]
    x -= 2 * torch.ones(4, 3, 3)
    x /= 2
    return (x + kept[0]).flatten(1)


def of_a_caller(net: nn.Module, x: Tensor) -> Tensor:
    def block(y: Tensor) -> None:
        y += 1

    h = net.inner(x)
    block(h)
    return h.flatten(1)


def two_halves(net: nn.Module, x: Tensor) -> Tensor:
    h = net.inner(x)
    a, b = h[:, :2], h[:, 2:]
    a += 1
    return torch.cat([a, b], 1).flatten(1)


def numbers(net: nn.Module, x: Tensor) -> Tensor:
    batch = rows = x.shape[0]
    rows += 1
    width = x.size(1)
    width *= 9
    return net.inner(x).view(batch, width)


def masks(net: nn.Module, x: Tensor) -> Tensor:
    mask = torch.ones(4, 1, 1).bool()
    mask &= torch.tensor([True, False, True, True]).view(4, 1, 1)
    mask |= torch.zeros(4, 1, 1).bool()
    return (net.inner(x) * mask).flatten(1)


def by_its_type(net: nn.Module, x: Tensor) -> Tensor:
    if isinstance(x, torch.Tensor) and torch.is_tensor(x) and x.is_floating_point():
        x = (x - 0.5) / 0.25
    return net.inner(x).flatten(1) if not isinstance(x, tuple | list) else x[0]


def by_the_type_of_a_size(net: nn.Module, x: Tensor) -> Tensor:
    h = net.inner(x)
    return (h if isinstance(x.shape, torch.Size) and isinstance(h.size(), tuple) else x).flatten(1)


def by_an_attribute(net: nn.Module, x: Tensor) -> Tensor:
    x = x.tensors if hasattr(x, "tensors") else 2 * x
    return net.inner(getattr(x, "mask", x)).flatten(1)


def by_the_type_of_a_weight(net: nn.Module, x: Tensor) -> Tensor:
    h = net.inner(x)
    h = h * net.inner.weight.sum() if isinstance(net.inner.weight, nn.Parameter) else h
    return h.flatten(1)


def only_its_size_is_read_later(net: nn.Module, x: Tensor) -> Tensor:
    h = net.inner(x)
    flat = h.view(h.shape[0], -1)
    flat += 1
    return flat.to(h.dtype) + torch.zeros_like(h).flatten(1)


def only_the_rest_is_read_later(net: nn.Module, x: Tensor) -> Tensor:
    h = net.inner(x)
    first = h[:, :2]
    first *= 3
    return torch.cat([first, h[:, 2:]], 1).flatten(1)


def a_loss_beside(net: nn.Module, x: Tensor) -> Tensor:
    h = net.inner(x)
    loss = h.new_zeros(())
    loss += h.detach().square().mean()
    net.calls += h.argmax()
    return h.flatten(1)


class Straight(torch.autograd.Function):
    """What C code does with its arguments is not to be led astray."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: object, *given: Tensor) -> Tensor:
        return 2 * given[0]


def an_autograd_function(net: nn.Module, x: Tensor) -> Tensor:
    h = net.inner(x)
    assert isinstance(h, Tensor)
    return Straight.apply(h).flatten(1)  # type: ignore[no-untyped-call, no-any-return]


def by_what_is_written_on_a_weight(net: nn.Module, x: Tensor) -> Tensor:
    net.inner.weight.doubled = True  # type: ignore[assignment, union-attr]
    h = net.inner(x)
    h.tag = 3
    h += 1
    if getattr(net.inner.weight, "doubled", False) and not hasattr(net.scale, "doubled"):
        h = h * h.tag
    return h.flatten(1)


FORWARDS = [
    by_what_is_written_on_a_weight,
    *(only_its_size_is_read_later, only_the_rest_is_read_later, a_loss_beside),
    *(under_two_names, kept_in_a_list, of_a_caller, two_halves, numbers, masks),
    *(
        by_its_type,
        by_the_type_of_a_size,
        by_an_attribute,
        by_the_type_of_a_weight,
        an_autograd_function,
    ),
]


@pytest.mark.parametrize("forward", FORWARDS)
def test_the_network_that_is_propagated_is_the_one_that_runs(forward: Forward) -> None:
    """`+=` changed one name only, and what asked for a type went the other way, silently."""
    model = Written(forward, 36).double().eval()
    names = list(model.state_dict())
    x = torch.rand(3, *SHAPE, dtype=torch.float64)
    out = Propagator(model, 0.5, SHAPE, settings=PAPER.but(r_max=0.0))(x)
    assert relative(out.mean, model(x.clone())) < 1e-12
    exact = covprop.margin(model, x.clone(), 0.5, "linearized")  # the network is linear
    assert relative(covprop.margin(model, x, 0.5, "dense").var, exact.var) < 1e-9
    assert list(model.state_dict()) == names


def by_its_exact_class(net: nn.Module, x: Tensor) -> Tensor:
    net.calls += 1
    return (net.inner(x) if type(x) is torch.Tensor else x).flatten(1)


def by_chance(net: nn.Module, x: Tensor) -> Tensor:
    net.calls += 1
    return net.inner(x + torch.randn_like(x)).flatten(1)


def test_check_runs_the_trace_against_the_model() -> None:
    """The last resort against a trace of another network; nothing is left in the model."""
    other, same = Written(by_its_exact_class, 36), Written(by_chance, 36).train()
    before = torch.get_rng_state()
    with pytest.raises(UnsupportedModel, match=r"Written\.forward computes something else than"):
        check(other, SHAPE)
    check(same, SHAPE)
    assert (other.calls, same.calls, same.training) == (0, 0, True)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "forward", [by_the_type_of_a_weight, by_what_is_written_on_a_weight, an_autograd_function]
)
def test_check_accepts_what_is_traced_rightly(forward: Forward) -> None:
    check(Written(forward, 36), SHAPE)
