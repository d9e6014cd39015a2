"""Draws the figures of tour.md, from the embedded digits and from toys, in about a minute.

    python docs/make_figures.py

Writes docs/figures/NAME.svg, and NAME.csv where the page quotes numbers.
"""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from scipy.stats import norm
from torch import nn

from covprop import data, models
from covprop.certify import certify
from covprop.inspect import exhibits, figures, margin_map
from covprop.inspect.figures import Exhibit

FIGURES = Path(__file__).parent / "figures"
SIGMA = 0.25
QUOTED = ("layers", "last_layer", "margin_map", "smoothing")


def digits_network() -> nn.Module:
    """LeNet on the digits, trained with Gaussian noise."""
    torch.manual_seed(0)
    facts = data.DATASETS["digits"]
    model = models.build(
        "lenet", num_classes=10, image_shape=(1, 8, 8), mean=facts.mean, std=facts.std, width=16
    )
    digits = data.load("digits", "train")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for epoch in range(12):
        for batch in data.batches(digits, 128, epoch=epoch, seed=0, device="cpu"):
            noisy = batch.x + SIGMA * torch.randn(batch.x.shape)
            loss = F.cross_entropy(model(noisy), batch.y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.eval()


def smoothing() -> Exhibit:
    """One point, its noisy copies and the votes, and the circle that they certify."""
    points, truth = margin_map.moons(240, 0)
    model = margin_map.train(points, truth, "noise", 0)
    sigma, at = 0.3, np.array([0.05, 0.62])
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(400, 2, generator=generator).double().numpy()
    cloud = at + sigma * noise
    with torch.no_grad():
        votes = model(torch.tensor(cloud, dtype=torch.float32)).argmax(1).numpy()
    picture = torch.tensor(at, dtype=torch.float32).view(1, 2, 1, 1)
    certificate = certify(
        nn.Sequential(nn.Flatten(), model), picture, sigma=sigma, n=10_000, num_classes=2,
        value_range=None,
    )  # fmt: skip
    radius, p_lower = float(certificate.radius[0]), float(certificate.p_lower[0])
    with figures.look():
        figure = figures.new_figure(7.0, 2.9)
        plane, curve = figure.subplots(1, 2)
        draw_votes(plane, model, at, cloud, votes, radius)
        p = np.linspace(0.5, 0.999, 400)
        curve.plot(p, sigma * norm.ppf(p), color=figures.SAMPLES, linewidth=1.8)
        curve.plot([p_lower, p_lower, 0.5], [0, radius, radius], color=figures.TRACKED,
                   dashes=(4, 3), linewidth=1.2)  # fmt: skip
        curve.plot(p_lower, radius, "o", color=figures.TRACKED, ms=5)
        curve.set(xlabel="share of votes for the winner (lower bound)", ylabel="certified radius")
        curve.set(title="more agreement, a larger circle", xlim=(0.5, 1), ylim=(0, None))
        curve.grid(True)
    row = (float((votes == int(certificate.prediction[0])).mean()), p_lower, radius, sigma)
    columns = ("votes of the 400 drawn", "lower bound of p", "certified radius", "sigma")
    return Exhibit("smoothing", "", "", columns, [row], figure)


def draw_votes(
    axes: Axes,
    model: nn.Module,
    at: np.ndarray,
    cloud: np.ndarray,
    votes: np.ndarray,
    radius: float,
) -> None:
    x, y = np.meshgrid(np.linspace(-1.3, 1.4, 120), np.linspace(-0.6, 1.8, 120))
    grid = torch.tensor(np.stack([x, y], 2).reshape(-1, 2), dtype=torch.float32)
    with torch.no_grad():
        logits = model(grid)
    margin = (logits[:, 1] - logits[:, 0]).view(x.shape).numpy()
    axes.contour(x, y, margin, [0.0], colors=[figures.INK], linewidths=1.8)
    looks = ((0, figures.SAMPLES, "o", "noisy copy, votes A"), (1, figures.TRACKED, "^", "votes B"))
    for vote, colour, marker, label in looks:
        own = cloud[votes == vote]
        axes.scatter(*own.T, s=9, color=colour, marker=marker, linewidths=0, label=label)
    circle = figures.ellipse_points(at, np.eye(2), radius)
    axes.plot(*circle.T, color=figures.LINEAR, linewidth=2, label="certified")
    axes.plot(*at, marker="+", color=figures.INK, ms=9, mew=2)
    axes.set(xlim=(-1.3, 1.4), ylim=(-0.6, 1.8), xticks=[], yticks=[], title="votes under noise")
    axes.set_aspect("equal")
    axes.figure.legend(frameon=False, loc="outside lower left", ncols=3, fontsize=7.5)


def main() -> None:
    test = data.load("digits", "test")
    batch = next(iter(data.batches(test, 60, epoch=0, seed=0, device="cpu", shuffle=False)))
    shown = exhibits(digits_network(), batch.x, batch.y.tolist(), SIGMA, classes=test.classes)
    FIGURES.mkdir(exist_ok=True)
    for exhibit in [smoothing(), *shown]:
        for name, content in exhibit.files.items():
            stem, _, kind = name.rpartition(".")
            if kind == "svg" or (kind == "csv" and stem in QUOTED):
                (FIGURES / name).write_bytes(content)
    (FIGURES / "memory.svg").unlink()  # the page shows the paper's network instead


if __name__ == "__main__":
    main()
