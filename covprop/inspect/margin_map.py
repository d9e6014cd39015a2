"""Two half moons with wrong labels: the decision boundary with and without the radius term."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from covprop.certify import certify
from covprop.inspect import figures
from covprop.inspect.figures import Exhibit
from covprop.noise import seeded
from covprop.propagate.propagator import Propagator
from covprop.radius import RadiusLoss

Array = NDArray[np.float64]
SIGMA, WEIGHT, OFFSET = 0.2, 2.0, 1.0
FLIPPED = 0.2
STEPS = 400
SIDE = 91  # of the map, in points


@dataclass(frozen=True)
class Map:
    """One trained network over the plane."""

    title: str
    margin: Array  # [SIDE, SIDE]: logit of class 1 minus logit of class 0
    accuracy: float  # on fresh points with true labels
    fitted: float  # share of the wrong training labels that it reproduces
    certified: float  # mean certified radius on fresh points, 0 for a wrong answer


@dataclass(frozen=True)
class MarginMap:
    """The networks, and the points they were trained on."""

    maps: list[Map]
    points: Array
    labels: NDArray[np.int64]  # as given
    wrong: NDArray[np.bool_]


def moons(count: int, seed: int) -> tuple[Array, NDArray[np.int64]]:
    """Two interleaving half circles of radius 1, with Gaussian scatter of 0.12."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    angle = random.uniform(0, np.pi, count)
    x = np.where(labels == 0, np.cos(angle), 1 - np.cos(angle))
    y = np.where(labels == 0, np.sin(angle), 0.5 - np.sin(angle))
    points = np.stack([x - 0.5, y - 0.25], 1) + 0.12 * random.standard_normal((count, 2))
    return points, labels


def flip(labels: NDArray[np.int64], share: float, seed: int) -> NDArray[np.int64]:
    """Labels of which a share is wrong."""
    wrong = np.random.default_rng(seed).random(len(labels)) < share
    return np.where(wrong, 1 - labels, labels)


def train(points: Array, labels: NDArray[np.int64], way: str, seed: int = 0) -> nn.Module:
    """A small network on the noisy labels.

    "alone" is cross-entropy of the propagated mean, "radius" adds the hinge on the estimated
    radius, "noise" is the usual cross-entropy on noisy copies of the points.
    """
    with seeded(seed, torch.device("cpu")):
        model = nn.Sequential(
            nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
        )
    x, y = torch.tensor(points, dtype=torch.float32), torch.tensor(labels)
    prop = Propagator(model, SIGMA, (2,))
    weight = WEIGHT if way == "radius" else 0.0
    hinge = RadiusLoss(sigma=SIGMA, weight=weight, offset=OFFSET)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(STEPS):
        if way == "noise":
            noisy = x + SIGMA * torch.randn(x.shape, generator=generator)
            loss = F.cross_entropy(model(noisy), y)
        else:
            loss = hinge(prop(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


WAYS = {
    "alone": "cross-entropy alone",
    "radius": "with the radius term",
    "noise": "on noisy copies instead",
}


def measure(seed: int = 0, count: int = 240) -> MarginMap:
    """Train the three networks and look at them."""
    points, truth = moons(count, seed)
    labels = flip(truth, FLIPPED, seed + 1)
    fresh, expected = moons(400, seed + 2)
    maps = []
    for way, title in WAYS.items():
        model = train(points, labels, way, seed)
        maps.append(_map(title, model, points, labels, truth != labels, fresh, expected))
    return MarginMap(maps, points, labels, truth != labels)


def _map(
    title: str, model: nn.Module, points: Array, labels: NDArray[np.int64],
    wrong: NDArray[np.bool_], fresh: Array, expected: NDArray[np.int64],
) -> Map:  # fmt: skip
    def classes(at: Array) -> NDArray[np.int64]:
        with torch.no_grad():
            return model(torch.tensor(at, dtype=torch.float32)).argmax(1).numpy()

    grid = _grid()
    with torch.no_grad():
        logits: Tensor = model(torch.tensor(grid.reshape(-1, 2), dtype=torch.float32))
    pictures = torch.tensor(fresh[:100], dtype=torch.float32).view(-1, 2, 1, 1)
    certificate = certify(
        nn.Sequential(nn.Flatten(), model), pictures, sigma=SIGMA, n=2000, num_classes=2,
        value_range=None,
    )  # fmt: skip
    right = certificate.prediction.numpy() == expected[:100]
    return Map(
        title,
        (logits[:, 1] - logits[:, 0]).view(SIDE, SIDE).double().numpy(),
        float((classes(fresh) == expected).mean()),
        float((classes(points) == labels)[wrong].mean()),
        float((certificate.radius.numpy() * right).mean()),
    )


def _grid() -> Array:
    x, y = np.meshgrid(np.linspace(-2.1, 2.1, SIDE), np.linspace(-1.5, 1.5, SIDE))
    return np.stack([x, y], 2)


def exhibit(made: MarginMap) -> Exhibit:
    maps = made.maps
    rows: list[tuple[figures.Cell, ...]] = [
        (m.title, m.accuracy, m.fitted, m.certified) for m in maps
    ]
    learnt = " / ".join(f"{100 * m.fitted:.0f}" for m in maps)
    accuracy = " / ".join(f"{100 * m.accuracy:.0f}" for m in maps)
    certified = " / ".join(f"{m.certified:.2f}" for m in maps)
    caption = (
        f"Two half moons, {len(made.points)} points, {100 * FLIPPED:.0f} % of the labels turned "
        "over (ringed). One network from one start, trained three ways: on the cross-entropy of "
        "the propagated mean alone, with the hinge on the estimated radius added, and, for "
        "comparison, on noisy copies of the points without any propagation. Alone it bends its "
        "boundary around single wrong labels; a boundary that must keep its distance from the "
        f"points cannot. Wrong labels learnt: {learnt} %. On fresh points with true labels: "
        f"accuracy {accuracy} %, mean certified radius {certified} at σ = {SIGMA:g}."
    )
    columns = ("trained with", "accuracy", "wrong labels learnt", "mean certified radius")
    points = [
        (float(x), float(y), int(label), int(wrong))
        for (x, y), label, wrong in zip(made.points, made.labels, made.wrong, strict=True)
    ]
    margins = np.stack([m.margin for m in maps], 2)
    grid = np.concatenate([_grid(), margins], 2).reshape(-1, 2 + len(maps)).tolist()
    raw: dict[str, figures.RawTable] = {
        "points": (("x", "y", "label as given", "wrong"), points),
        "grid": (("x", "y", *(f"margin, {m.title}" for m in maps)), grid),
    }
    return Exhibit(
        "margin_map", "Room around the boundary", caption, columns, rows, draw(made), True, raw
    )


def draw(made: MarginMap) -> figures.Figure:
    from matplotlib.colors import to_rgb

    with figures.look():
        figure = figures.new_figure(8.2, 2.25)
        grid = _grid()
        for axes, shown in zip(figure.subplots(1, 3, sharey=True), made.maps, strict=True):
            sure = np.tanh(0.5 * shown.margin)  # 2p − 1
            rgba = np.empty((SIDE, SIDE, 4))
            first, second = to_rgb(figures.SAMPLES), to_rgb(figures.TRACKED)
            rgba[..., :3] = np.where((sure > 0)[..., None], second, first)
            rgba[..., 3] = 0.3 * np.abs(sure)
            axes.imshow(rgba, extent=(-2.1, 2.1, -1.5, 1.5), origin="lower", aspect="auto",
                        interpolation="none")  # fmt: skip
            axes.contour(grid[..., 0], grid[..., 1], shown.margin, [0.0], colors=[figures.INK],
                         linewidths=1.6)  # fmt: skip
            for label, colour, marker in ((0, figures.SAMPLES, "o"), (1, figures.TRACKED, "^")):
                own = made.points[made.labels == label]
                axes.scatter(*own.T, s=7, color=colour, marker=marker, linewidths=0)
            ring = {"facecolors": "none", "edgecolors": figures.INK, "linewidths": 0.6}
            axes.scatter(*made.points[made.wrong].T, s=26, **ring)
            axes.set(title=shown.title, xlim=(-2.1, 2.1), ylim=(-1.5, 1.5), xticks=[], yticks=[])
            axes.set_aspect("equal")
    return figure
