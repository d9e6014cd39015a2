"""The paper's estimator, with and without correction by measured variances."""

from __future__ import annotations

from torch import Tensor, nn

from covprop.estimate.result import Margin, gaussian_margin
from covprop.propagate.propagator import Propagator
from covprop.propagate.settings import PAPER, Settings


def shared(model: nn.Module, x: Tensor, sigma: float, settings: Settings = PAPER) -> Margin:
    """One channel covariance a layer, shared by all pixels and images."""
    prop = Propagator(model, sigma, tuple(x.shape[1:]), settings)
    return gaussian_margin(prop(x), sigma, settings)


def calibrated(
    model: nn.Module, x: Tensor, sigma: float, settings: Settings = PAPER, samples: int = 8
) -> Margin:
    """`shared`, each layer's channel variances set to what noisy samples of x show."""
    prop = Propagator(model, sigma, tuple(x.shape[1:]), settings, calibrated=True)
    prop.calibrate(x, samples)
    return gaussian_margin(prop(x), sigma, settings)
