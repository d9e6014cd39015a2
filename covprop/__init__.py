"""covprop: closed-form moments of Gaussian noise through any PyTorch classifier.

Estimated radius (closed form, from moments) and certified radius (Monte Carlo with a confidence
bound) are two different things here, and no name in this package mixes them up.
"""

from covprop.errors import CovpropError, InvalidInput, UnsupportedModel
from covprop.gaussian import Gaussian

__version__ = "0.1.0"

__all__ = [
    "CovpropError",
    "Gaussian",
    "InvalidInput",
    "UnsupportedModel",
    "__version__",
]
