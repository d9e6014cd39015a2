"""Certification by randomized smoothing of any callable classifier."""

from covprop.certify.bounds import certified_radius, clopper_pearson, empirical_bernstein
from covprop.certify.smooth import Certificate, Prediction, SampleWarning, certify, predict
from covprop.certify.stream import certify_each, predict_each

__all__ = [
    "Certificate",
    "Prediction",
    "SampleWarning",
    "certified_radius",
    "certify",
    "certify_each",
    "clopper_pearson",
    "empirical_bernstein",
    "predict",
    "predict_each",
]
