"""The closed-form radius: an estimate from the moments of the logits, never a certificate.

    radius = σ · (μ[a] − μ[b]) / √v,    v = Σ[a,a] + Σ[b,b] − 2Σ[a,b],

with a and b the two classes of largest mean. Φ((μ[a] − μ[b])/√v) is P(u_a > u_b) under the
Gaussian, which is at least the probability that a wins against all classes.

Edge cases. Two classes that noise moves alike: v is no less than what rounding Σ may hide,
ε(Σ[a,a] + Σ[b,b]) with ε = 1.2e-7 in float32. The radius is finite then, has no gradient through Σ,
and says only that the true one is about as large or larger. v = 0, no noise at all: the radius is
±∞ or, in a tie, 0, and carries no gradient. A tie between classes gives 0. A NaN anywhere in an
image's logits gives NaN for that image. A single class has no runner-up and is refused.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from covprop.errors import InvalidInput
from covprop.gaussian import Gaussian
from covprop.kernels.moments import normal_cdf
from covprop.pixels import check_sigma
from covprop.propagate.settings import PAPER, Settings, check_settings


class TopTwo(NamedTuple):
    """The two classes of largest mean for each image."""

    top: Tensor
    runner_up: Tensor


def check_classes(mean: Tensor) -> None:
    """Refuse logits of fewer than two classes."""
    if mean.ndim != 2 or mean.shape[1] < 2:
        raise InvalidInput(
            f"the logits have shape {list(mean.shape)}: a margin needs [batch, classes] with at "
            "least two classes; a single output can be made two by stacking it with zeros."
        )


def top_two(mean: Tensor) -> TopTwo:
    """The largest and second largest class of each row; NaN counts as largest, so it shows."""
    check_classes(mean)
    order = mean.detach().topk(2, dim=1).indices
    return TopTwo(order[:, 0], order[:, 1])


def check_labels(mean: Tensor, labels: Tensor) -> None:
    """Refuse anything but one class number for each image.

    The range is checked on the CPU only: on a GPU it would wait for the numbers, and under a
    compiler or vmap there are none to read.
    """
    if not isinstance(labels, Tensor):
        raise InvalidInput(f"the labels are a {type(labels).__name__}; give a tensor.")
    whole = not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)
    if labels.shape != mean.shape[:1] or not whole:
        raise InvalidInput(
            f"labels of shape {list(labels.shape)} and {labels.dtype} for {len(mean)} images: "
            f"give [{len(mean)}] class numbers, as torch.int64."
        )
    if labels.device.type == "cpu" and not torch.compiler.is_compiling():
        _check_range(labels, mean.shape[1])


def _check_range(labels: Tensor, classes: int) -> None:
    wrong = (labels < 0) | (labels >= classes)
    try:
        place = int(wrong.int().argmax()) if wrong.any() else None
    except RuntimeError:  # vmap, or a fake tensor
        return
    if place is not None:
        raise InvalidInput(
            f"label {int(labels[place])} of image {place} is outside 0..{classes - 1}, "
            "the classes of the logits."
        )


def check_moments(out: Gaussian, sigma: float | None = None) -> None:
    """Refuse moments whose shapes do not fit, or that belong to another σ."""
    if not isinstance(out, Gaussian):
        raise InvalidInput(
            f"the moments are a {type(out).__name__}: give the Gaussian that a Propagator returns."
        )
    check_classes(out.mean)
    if out.cov.shape != 2 * out.mean.shape[1:]:
        raise InvalidInput(
            f"means of shape {list(out.mean.shape)} and a covariance of {list(out.cov.shape)}: "
            f"give one covariance for the batch, [{out.mean.shape[1]}, {out.mean.shape[1]}]."
        )
    if out.sigma is not None and sigma is not None and abs(out.sigma - sigma) > 1e-6 * sigma:
        raise InvalidInput(
            f"the moments were propagated with sigma={out.sigma:g} and the radius is asked for "
            f"sigma={sigma:g}: give the propagator's own, prop.sigma, or build one for {sigma:g}."
        )


def against_label(mean: Tensor, labels: Tensor) -> TopTwo:
    """The labelled class, and the largest other one."""
    check_classes(mean)
    check_labels(mean, labels)
    labels = labels.long()
    return TopTwo(labels, largest_other(mean, labels))


def largest_other(mean: Tensor, classes: Tensor) -> Tensor:
    """Of each row of mean [b, k] the largest class but the one given: [b]."""
    return mean.detach().scatter(1, classes[:, None], -torch.inf).argmax(1)


def gap_between(mean: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """u_a − u_b for the pair of classes of each row of mean [b, k]: [b]."""
    return (mean.gather(1, a[:, None]) - mean.gather(1, b[:, None])).squeeze(1)


def margin_variance(cov: Tensor, a: Tensor, b: Tensor, settings: Settings = PAPER) -> Tensor:
    """Variance of u_a − u_b for a batch of class pairs, from the one covariance they share.

    Rounding of the entries of Σ leaves Σ[a,a] + Σ[b,b] − 2Σ[a,b] uncertain by ε(Σ[a,a] + Σ[b,b]),
    in whatever precision it is computed. A smaller difference, or a negative one, is replaced by
    that amount, as a constant.
    """
    cross, of_a, of_b = cov[a, b], torch.diagonal(cov)[a], torch.diagonal(cov)[b]
    if settings.margin_covariance == "sum":
        return of_a + of_b + 2 * cross.abs()
    hidden = torch.finfo(cov.dtype).eps * (of_a.abs() + of_b.abs()).detach()
    # In this order, neither subtraction rounds when it cancels.
    return ((of_a - cross) + (of_b - cross)).clamp_min(hidden)


def ratio(margin: Tensor, variance: Tensor) -> Tensor:
    """margin/√variance, ±∞ (0 in a tie) where the variance is 0, without NaN gradients.

    A variance so small that margin/variance^1.5 is no number of this precision, or nearly, has no
    gradient: in float32 one below about 2e-22 at a margin of 1.
    """
    random = variance != 0  # a NaN variance is random too, and stays NaN
    safe = torch.where(random, variance, torch.ones_like(variance))
    root = torch.sqrt(safe)
    steep = (margin / safe / root).abs() > 1e-6 * torch.finfo(root.dtype).max
    root = torch.where(steep, root.detach(), root)
    certain = torch.where(margin == 0, margin, margin.sign() * torch.inf).detach()
    return torch.where(random, margin / root, certain)


def signed_ratio(out: Gaussian, labels: Tensor | None = None, settings: Settings = PAPER) -> Tensor:
    """(μ[a] − μ[b])/√v for the top two classes, or for the label against the best other class."""
    check_settings(settings)
    pair = top_two(out.mean) if labels is None else against_label(out.mean, labels)
    gap = gap_between(out.mean.to(out.cov.dtype), *pair)
    broken = torch.isnan(out.mean).any(1)
    gap = torch.where(broken, torch.full_like(gap, torch.nan), gap)
    return ratio(gap, margin_variance(out.cov, *pair, settings))


def estimated_radius(
    out: Gaussian, sigma: float, labels: Tensor | None = None, settings: Settings = PAPER
) -> Tensor:
    """The estimated radius of each image, [b].

    `sigma` is the one `out` was propagated with; another is refused where `out` knows its own.
    With `labels` it is signed: positive where the labelled class wins, negative where it loses.

    Example:
        >>> out = Gaussian(torch.tensor([[3.0, 1.0, 0.0]]), torch.eye(3))
        >>> round(float(estimated_radius(out, sigma=0.5)), 4)  # 0.5 · 2/√2
        0.7071
    """
    sigma = check_sigma(sigma)
    check_moments(out, sigma)
    return sigma * signed_ratio(out, labels, settings)


def top_two_probability(out: Gaussian, settings: Settings = PAPER) -> Tensor:
    """Φ((μ[a] − μ[b])/√v): P(u_a > u_b), an upper estimate of the top class's probability."""
    check_moments(out)
    return normal_cdf(signed_ratio(out, None, settings))


class RadiusLoss(nn.Module):
    """Cross-entropy of the mean plus λ·max(0, Γ − radius) where the prediction is right.

    Args:
        sigma: the noise's standard deviation.
        weight: λ.
        offset: Γ; the settings' value when None.
        settings: which margin variance and which hinge; see `Settings`.
        reduction: "mean" over the batch (wrong predictions count with hinge 0), or "none".

    Example:
        >>> out = Gaussian(torch.tensor([[2.0, 0.0]]), torch.eye(2))
        >>> loss = RadiusLoss(sigma=0.25, weight=4.0, offset=1.0)(out, torch.tensor([0]))
    """

    def __init__(
        self,
        sigma: float,
        weight: float = 4.0,
        offset: float | None = None,
        settings: Settings = PAPER,
        reduction: str = "mean",
    ) -> None:
        super().__init__()
        if reduction not in ("mean", "none"):
            raise InvalidInput(f'reduction is {reduction!r}: choose "mean" or "none".')
        if isinstance(weight, str) or not 0 <= weight < math.inf:
            raise InvalidInput(f"weight is {weight!r}: give λ, 0 or more.")
        if isinstance(offset, str) or not (offset is None or math.isfinite(offset)):
            raise InvalidInput(
                f"offset is {offset!r}: give the radius Γ that the hinge reaches for."
            )
        self.sigma = check_sigma(sigma)
        self.weight = weight
        self.settings = check_settings(settings)
        self.offset = settings.offset if offset is None else offset
        self.reduction = reduction

    def forward(self, out: Gaussian, labels: Tensor) -> Tensor:
        check_moments(out, self.sigma)
        check_labels(out.mean, labels)
        mean = out.mean.to(out.cov.dtype)
        loss = nn.functional.cross_entropy(mean, labels.long(), reduction="none")
        if self.weight:
            loss = loss + self.weight * self.hinge(out, labels)
        return loss.mean() if self.reduction == "mean" else loss

    def hinge(self, out: Gaussian, labels: Tensor) -> Tensor:
        """max(0, Γ − radius), by the settings, for right predictions, 0 for wrong ones, [b]."""
        check_moments(out, self.sigma)
        check_labels(out.mean, labels)
        scaled = signed_ratio(out, None, self.settings)
        right = out.mean.detach().argmax(1) == labels
        mean = out.mean.to(out.cov.dtype)
        return hinge(scaled, mean, right, self.sigma, self.offset, self.settings)


def hinge(
    scaled: Tensor, mean: Tensor, right: Tensor, sigma: float, offset: float, settings: Settings
) -> Tensor:
    """max(0, Γ − σ·scaled), scaled = margin/√v, where the prediction is `right`, else 0: [b].

    Without `hinge_in_sigma` it is max(0, Γ − scaled); `soft_term` adds `soft_hinge`.
    """
    loss = torch.relu(offset - (sigma * scaled if settings.hinge_in_sigma else scaled))
    if settings.soft_term:
        loss = loss + soft_hinge(mean, offset)
    return torch.where(right, loss, torch.zeros_like(loss))


def soft_hinge(mean: Tensor, offset: float) -> Tensor:
    """max(0, Γ − (Φ⁻¹(p₁) − Φ⁻¹(p₂))) with p = softmax(16·mean), MACER's term on the mean."""
    two = torch.softmax(16.0 * mean, dim=1).topk(2, dim=1).values
    eps = torch.finfo(mean.dtype).eps
    quantile = torch.special.ndtri(two.clamp(eps, 1 - eps))
    return torch.relu(offset - (quantile[:, 0] - quantile[:, 1]))
