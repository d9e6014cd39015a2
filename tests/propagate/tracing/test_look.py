"""What a look at the steps refuses, and what it lets pass."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import covprop
from covprop import UnsupportedModel, check


class After(nn.Module):
    """A function of three noisy numbers."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.function = nn.Linear(4, 3), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.first(x.flatten(1)))


@pytest.mark.parametrize(
    "function",
    [
        lambda h: h + 5 * (h > 0).float(),
        lambda h: h * (h > 0),
        lambda h: h + F.one_hot(h.argmax(1), 3),
        lambda h: torch.cat([h, h >= 0], 1),
        lambda h: h + h.to(torch.int32),
        lambda h: h + torch.fft.fft(h).real,
    ],
    ids=["gate", "relu by hand", "one hot", "cat", "cast", "complex"],
)
def test_what_is_decided_by_noise_is_noisy_whatever_its_type(
    function: Callable[[Tensor], Tensor],
) -> None:
    """They passed for constants: half a radius too large, and bounds of ibp that did not hold."""
    model = After(function)
    with pytest.raises(UnsupportedModel, match="makes truth values, whole or complex numbers"):
        check(model, input_shape=(1, 2, 2))
    with pytest.raises(UnsupportedModel, match="makes truth values, whole or complex numbers"):
        covprop.ibp(model, torch.zeros(1, 1, 2, 2), 0.3)


def test_what_leads_to_no_output_is_no_value_of_the_network() -> None:
    def asserting(h: Tensor) -> Tensor:
        torch._assert((h < 100).all(), "too large")
        torch._assert(h.shape[1] == 3, "not three")
        h.argmax(1)
        return 2 * h

    check(After(asserting), input_shape=(1, 2, 2))


def asserted(scale: Callable[[Tensor], Tensor]) -> nn.Module:
    """A network that returns what `scale` was given, and looks at its answer only to check it."""

    def writing(h: Tensor) -> Tensor:
        h = h + 0.5
        torch._assert(scale(h).dim() == 2, "no vectors")
        return h

    return After(writing)


@pytest.mark.parametrize(
    "scale", [lambda h: h.mul_(10), lambda h: F.relu(h, inplace=True)], ids=["method", "option"]
)
def test_what_is_written_in_place_counts_whoever_reads_the_answer(
    scale: Callable[[Tensor], Tensor],
) -> None:
    model, x = asserted(scale), torch.rand(2, 1, 2, 2)
    found = covprop.margin(model, x, 0.1, "dense")
    sampled = covprop.margin(model, x, 0.1, "sampled", samples=4000)
    torch.testing.assert_close(found.mean, sampled.mean, rtol=0.1, atol=0.05)
    torch.testing.assert_close(found.var, sampled.var, rtol=0.2, atol=1e-4)


def test_values_that_a_mask_chooses_are_refused() -> None:
    model = After(lambda h: h[:, torch.tensor([True, False, True])])
    with pytest.raises(UnsupportedModel, match="a mask; take them by slices or by a list"):
        check(model, input_shape=(1, 2, 2))


def test_what_is_written_by_out_is_refused() -> None:
    model = asserted(lambda h: torch.mul(h, 10, out=h))
    with pytest.raises(UnsupportedModel, match="writes into the tensor given as out="):
        check(model, input_shape=(1, 2, 2))


def test_an_out_that_is_not_given_is_none() -> None:
    """F.normalize hands its out=None on, and was refused for it instead of for what it does."""
    with pytest.raises(UnsupportedModel, match="it divides by a statistic of each image"):
        check(After(F.normalize), input_shape=(1, 2, 2))
    check(After(lambda x: (F.normalize(x), x)[1]), input_shape=(1, 2, 2))  # nobody reads it


def test_tensors_made_like_a_noisy_one_are_constants() -> None:
    table = nn.Embedding(5, 3)

    def constant(h: Tensor) -> Tensor:
        return h + table(h.new_zeros(1, dtype=torch.long)) + torch.ones_like(h)

    model = After(constant)
    model.table = table
    x = torch.rand(2, 1, 2, 2)
    with torch.no_grad():
        out = covprop.Propagator(model, 0.25, (1, 2, 2))(x)
        torch.testing.assert_close(out.mean, model(x))
        expected = 0.0625 * model.first.weight @ model.first.weight.T
    torch.testing.assert_close(out.cov, expected)


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_a_rule_tells_the_channels_of_a_layer_that_meta_tensors_cannot_run(classes: int) -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(classes, 4))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight.T if x.sum() > -1e9 else x

    @covprop.rule(Branching)
    def matrix(layer: Branching, cov: Tensor, settings: covprop.Settings) -> Tensor:
        return layer.weight @ cov @ layer.weight.T

    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), Branching())
    out = covprop.Propagator(model, 0.25, (4, 1, 1))(torch.rand(3, 4, 1, 1))
    assert (out.mean.shape, out.cov.shape) == ((3, classes), (classes, classes))


def test_a_rule_whose_covariance_does_not_fit_its_output_is_named() -> None:
    class Halved(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[:, ::2]

    @covprop.rule(Halved)
    def kept(layer: nn.Module, cov: Tensor, settings: covprop.Settings) -> Tensor:
        return cov

    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), Halved())
    with pytest.raises(UnsupportedModel, match="kept of 2 returned a covariance of 6 channels"):
        check(model, input_shape=(1, 2, 2))


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda cov: cov[:1, :1], "a covariance of 1 channels for an output of 4"),
        (lambda cov: None, r"a NoneType, not a covariance \[N, N\]"),
        (lambda cov: cov.diagonal(), r"\[4\], not a covariance \[N, N\]"),
    ],
    ids=["too few channels", "nothing", "variances"],
)
def test_a_rule_that_returns_no_covariance_of_its_output_is_named(
    made: Callable[[Tensor], Tensor], message: str
) -> None:
    """One over fewer channels passed for that of a flattened image, and gave other numbers."""

    class Reversed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flip(1)

    @covprop.rule(Reversed)
    def turned(layer: nn.Module, cov: Tensor, settings: covprop.Settings) -> Tensor:
        return made(cov)

    model = nn.Sequential(nn.Conv2d(1, 4, 1), Reversed(), nn.Flatten(), nn.Linear(16, 2))
    with pytest.raises(UnsupportedModel, match=f"turned of 1 returned {message}"):
        check(model, input_shape=(1, 2, 2))


def test_a_layer_of_two_names_keeps_its_weights() -> None:
    """The look lost them: the network itself had tensors without numbers afterwards."""
    mix = nn.Conv2d(4, 4, 3, padding=1)
    model = nn.Sequential(nn.Conv2d(1, 4, 1), mix, nn.ReLU(), mix, nn.Flatten(), nn.Linear(16, 3))
    apart = copy.deepcopy(model)
    apart[3] = copy.deepcopy(apart[1])
    held, x = mix.weight, torch.rand(2, 1, 2, 2)
    expected = model(x)
    found, same = (covprop.Propagator(net, 0.3, (1, 2, 2))(x) for net in (model, apart))
    assert mix.weight is held
    assert torch.equal(model(x), expected)
    torch.testing.assert_close(found.mean, same.mean)
    torch.testing.assert_close(found.cov, same.cov)
    check(model, (1, 2, 2))
    covprop.ibp(model, x, 0.1)
    covprop.margin(model, x, 0.3, "dense")
    assert mix.weight is held
