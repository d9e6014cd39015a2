"""The top two logits of an image as Gaussians, and what follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covprop.certify import certify
from covprop.estimate import margin
from covprop.inspect import figures
from covprop.inspect.figures import Exhibit
from covprop.inspect.layers import noisy_chunks
from covprop.mode import switched
from covprop.propagate.propagator import Propagator
from covprop.radius import estimated_radius, top_two_probability
from covprop.report.style import shorten

Array = NDArray[np.float64]
ALPHA = 0.001


@dataclass(frozen=True)
class LastLayer:
    """One image at the last layer."""

    image: int
    picture: Array  # [c, h, w]
    label: int
    top: int
    runner_up: int
    draws: Array  # [samples, 2]: the two logits
    mean: Array  # [2], propagated
    cov: Array  # [2, 2]
    probability: float  # that the top logit is the larger, by the propagated moments
    sampled: float  # the share of samples in which it is the largest of all
    estimated: float  # radius from the propagated moments
    linearized: float  # radius from the gradient
    certified: float  # by sampling; 0 where it abstains
    prediction: int  # certified class, −1 for "abstain"


def last_layer(
    prop: Propagator,
    x: Tensor,
    labels: Sequence[int],
    indices: Sequence[int],
    samples: int = 2000,
    n: int = 10_000,
    seed: int = 0,
) -> list[LastLayer]:
    """Propagated and sampled logits of a few images, their estimated radii and certificates."""
    with switched(prop.model, training=False):
        with torch.no_grad():
            out = prop(x)
            probability = top_two_probability(out, prop.settings)
        radius = estimated_radius(out, sigma=prop.sigma, settings=prop.settings)
        slopes = margin(prop.model, x, prop.sigma, "linearized")
        certificate = certify(
            prop.model, x, sigma=prop.sigma, n=n, alpha=ALPHA, seed=seed, index=list(indices),
            num_classes=out.mean.shape[1],
        )  # fmt: skip
        found = []
        generator = torch.Generator().manual_seed(seed)
        for k in range(len(x)):
            with torch.no_grad():
                chunks = noisy_chunks(prop, x[k], samples, generator)
                logits = torch.cat([prop.model(noisy) for noisy in chunks]).double().cpu()
            pair = out.mean[k].topk(2).indices.tolist()
            found.append(
                LastLayer(
                    image=indices[k],
                    picture=x[k].detach().double().cpu().numpy(),
                    label=int(labels[k]),
                    top=pair[0],
                    runner_up=pair[1],
                    draws=logits[:, pair].numpy(),
                    mean=out.mean[k, pair].double().cpu().numpy(),
                    cov=out.cov[pair][:, pair].detach().double().cpu().numpy(),
                    probability=float(probability[k]),
                    sampled=float((logits.argmax(1) == pair[0]).double().mean()),
                    estimated=float(radius[k]),
                    linearized=float(slopes.radius[k]),
                    certified=float(certificate.radius[k]),
                    prediction=int(certificate.prediction[k]),
                )
            )
    return found


def spread(prop: Propagator, x: Tensor) -> list[int]:
    """Positions of four images from the smallest to the largest estimated radius, evenly spaced."""
    with switched(prop.model, training=False), torch.no_grad():
        radii = estimated_radius(prop(x), sigma=prop.sigma, settings=prop.settings)
        order = radii.argsort().tolist()
    places = np.linspace(0.05, 0.95, min(4, len(order))) * (len(order) - 1)
    return [order[round(p)] for p in places]


COLUMNS = (
    *("image", "label", "top", "runner-up", "mean top", "mean runner-up", "variance top"),
    *("variance runner-up", "covariance", "P(top > runner-up), propagated"),
    *("share of samples for top", "estimated radius", "linearised estimate"),
    *("certified class", "certified radius"),
)


def exhibit(found: Sequence[LastLayer], classes: Sequence[str], n: int, ordered: bool) -> Exhibit:
    """The figure: one column an image, `ordered` by estimated radius or as they were chosen."""
    rows: list[tuple[figures.Cell, ...]] = [
        (
            *(r.image, classes[r.label], classes[r.top], classes[r.runner_up]),
            *map(float, (*r.mean, r.cov[0, 0], r.cov[1, 1], r.cov[0, 1])),
            *(r.probability, r.sampled, r.estimated, r.linearized),
            "abstains" if r.prediction < 0 else classes[r.prediction],
            r.certified,
        )
        for r in found
    ]
    order = "from the smallest to the largest estimated radius" if ordered else "as chosen"
    caption = (
        f"A few images, {order}. Lines: the two largest logits, blue the first and orange the "
        "second, as the Gaussians that propagation gives; filled: their histograms over noisy "
        "copies of the image. p is the probability that the first beats the second. From the "
        "distance of the two and their joint variance follows the estimated radius, without a "
        "sample and without a promise (from the shared Σ, and from the gradient). The certified "
        f"radius comes from {n:,} samples and is wrong with probability at most {ALPHA:g}."
    )
    names = [f"image {r.image}, {k}" for r in found for k in ("top", "runner-up")]
    draws = np.concatenate([r.draws for r in found], 1).tolist()
    return Exhibit(
        "last_layer", "The last layer", caption, COLUMNS, rows, draw(found, classes), True,
        raw={"draws": (names, draws)},
    )  # fmt: skip


def draw(found: Sequence[LastLayer], classes: Sequence[str]) -> figures.Figure:
    with figures.look():
        figure = figures.new_figure(1.85 * len(found) + 0.3, 3.3)
        grid = figure.subplots(2, len(found), height_ratios=(0.5, 1), squeeze=False)
        for (above, axes), row in zip(grid.T, found, strict=True):
            _picture(above, row, classes)
            _bells(axes, row, classes)
    return figure


def _picture(axes: figures.Axes, row: LastLayer, classes: Sequence[str]) -> None:
    from matplotlib.offsetbox import AnchoredOffsetbox, OffsetImage

    picture = row.picture.transpose(1, 2, 0).clip(0, 1)
    shown = picture[..., 0] if picture.shape[2] != 3 else picture
    zoom = 42 / max(shown.shape[:2])
    image = OffsetImage(shown, zoom=zoom, cmap="gray", interpolation="nearest")
    axes.add_artist(AnchoredOffsetbox("center left", child=image, frameon=False, pad=0))
    axes.axis("off")
    certified = "abstains" if row.prediction < 0 else f"certified {row.certified:.2f}"
    if 0 <= row.prediction != row.top:
        certified += f" ({shorten(classes[row.prediction], 10)})"
    text = (
        f"p = {row.probability:.3f}\nestimated {row.estimated:.2f}\n"
        f"by gradient {row.linearized:.2f}\n"
    )
    label = axes.text(0.42, 0.5, text + certified, transform=axes.transAxes, va="center",
                      fontsize=7.5, linespacing=1.45, parse_math=False)  # fmt: skip
    label.set_in_layout(False)
    axes.set_title(f"image {row.image}: {shorten(classes[row.label], 12)}", parse_math=False)


def _bells(axes: figures.Axes, row: LastLayer, classes: Sequence[str]) -> None:
    looks = ((figures.SAMPLES, ()), (figures.TRACKED, (6, 2.5)))
    edges = np.linspace(row.draws.min(), row.draws.max(), 41).tolist()
    tallest = 0.0
    for k, (colour, dash) in enumerate(looks):
        heights = axes.hist(row.draws[:, k], edges, density=True, color=colour, alpha=0.3)[0]
        deviation = float(np.sqrt(row.cov[k, k]))
        at = row.mean[k] + deviation * np.linspace(-3.2, 3.2, 161)
        bell = np.exp(-0.5 * ((at - row.mean[k]) / deviation) ** 2)
        bell /= deviation * np.sqrt(2 * np.pi)
        name = shorten(classes[(row.top, row.runner_up)[k]], 12)
        axes.plot(at, bell, color=colour, dashes=dash or (None, None), linewidth=1.6, label=name)
        tallest = max(tallest, float(np.max(heights)), float(bell.max()))
    axes.set(xlabel="logit", yticks=[], ylim=(0, 1.5 * tallest))
    axes.spines["left"].set_visible(False)
    legend = axes.legend(frameon=False, loc="upper left", handlelength=1.6)
    for text in legend.get_texts():
        text.set_parse_math(False)
