"""What a look at the steps refuses, and what it lets pass."""

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


def test_what_is_only_asserted_is_no_value_of_the_network() -> None:
    def asserting(h: Tensor) -> Tensor:
        torch._assert((h < 100).all(), "too large")
        torch._assert(h.shape[1] == 3, "not three")
        return 2 * h

    check(After(asserting), input_shape=(1, 2, 2))


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
