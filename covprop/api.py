"""The public API, as `covprop` hands it out when a name of it is first asked for."""

from covprop import __version__
from covprop.bound import decorrelated_bound, inflation
from covprop.certify import Certificate, certify, predict
from covprop.errors import CovpropError, InvalidInput, UnsupportedModel
from covprop.estimate import margin
from covprop.estimate.ibp import Box, ibp
from covprop.estimate.result import Margin
from covprop.gaussian import Gaussian
from covprop.layers import ActNorm, HermiteActivation
from covprop.models.normalize import Normalize
from covprop.propagate.check import check, fix
from covprop.propagate.propagator import Propagator
from covprop.propagate.registry import rule
from covprop.propagate.rules.activation import elementwise
from covprop.propagate.settings import PAPER, REFERENCE, Settings
from covprop.radius import RadiusLoss, estimated_radius, top_two_probability

__all__ = [
    "PAPER",
    "REFERENCE",
    "ActNorm",
    "Box",
    "Certificate",
    "CovpropError",
    "Gaussian",
    "HermiteActivation",
    "InvalidInput",
    "Margin",
    "Normalize",
    "Propagator",
    "RadiusLoss",
    "Settings",
    "UnsupportedModel",
    "__version__",
    "certify",
    "check",
    "decorrelated_bound",
    "elementwise",
    "estimated_radius",
    "fix",
    "ibp",
    "inflation",
    "margin",
    "predict",
    "rule",
    "top_two_probability",
]
