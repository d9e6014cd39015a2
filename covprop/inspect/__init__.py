"""See inside: what the noise does to a network, layer by layer, as tables and figures.

    shown = exhibits(model, x, labels, sigma=0.25)
    write(shown, "inspect")

draws what the method's paper draws, on your own network and images: PNG and SVG with the data
beside each as CSV, and one page that holds everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor, nn

from covprop.certify.inputs import as_index
from covprop.errors import InvalidInput
from covprop.files import write as write_file
from covprop.inspect import cost, distribution, inputs, last_layer, layers, margin_map, toy
from covprop.inspect.figures import Exhibit
from covprop.inspect.layers import Layer, choose_layers, find_layers, layer_table
from covprop.mode import switched
from covprop.propagate.propagator import Propagator
from covprop.propagate.settings import PAPER, Settings

__all__ = ["PARTS", "Exhibit", "Layer", "exhibits", "find_layers", "layer_table", "write"]

PARTS = ("layers", "distribution", "last-layer", "toy", "cost", "margin-map")
"""What can be shown: three parts about the network at hand, three about the method."""

LEAD = (
    "What Gaussian noise at the input does inside the network: measured on noisy samples, and "
    "propagated in closed form. Estimated radii come from propagation; certified radii from "
    "sampling with a confidence bound."
)


def exhibits(
    model: nn.Module,
    x: Tensor,
    labels: Sequence[int],
    sigma: float,
    *,
    settings: Settings = PAPER,
    chosen: str = "all",
    images: Sequence[int] | None = None,
    channels: tuple[int, int] | None = None,
    classes: Sequence[str] | None = None,
    indices: Sequence[int] | None = None,
    samples: int = 1000,
    n: int = 10_000,
    seed: int = 0,
    parts: Sequence[str] = PARTS,
) -> list[Exhibit]:
    """Tables and figures about a model on images x [b, c, h, w], pixels in [0, 1].

    Args:
        model: any supported classifier; it is evaluated and left as it was.
        labels: the true class of each image.
        chosen: layers by number or name ("1,5,9"), "all", or "paper": five evenly spaced ones.
        images: positions in x of the images shown singly; default: from the smallest to the
            largest estimated radius.
        channels: the two channels of the distribution figure; default: the noisiest two.
        classes: names of the classes; default: their numbers.
        indices: what each image is called; default: its position in x.
        samples: noisy copies of each image for the layer table.
        n: samples for the certificates of the images shown singly.
        parts: which of `PARTS` to make.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> shown = exhibits(model, torch.rand(4, 1, 4, 4), [0, 1, 2, 0], 0.1, parts=("layers",))
        >>> [(e.name, len(e.rows)) for e in shown]
        [('layers', 2)]
    """
    parts = inputs.as_parts(parts, PARTS)
    inputs.check_images(x)
    indices = as_index(indices, len(x))
    images = None if images is None else inputs.as_positions(images, len(x))
    made: list[Exhibit] = []
    prop = Propagator(model, sigma, tuple(x.shape[1:]), settings)
    if "last-layer" in parts:
        count = prop.plan.steps[prop.plan.output - 1].out_shape[0]
        labels, names = inputs.as_labels(labels, len(x), count), inputs.as_names(classes, count)
    with switched(model, training=False):
        if settings.r_max == "estimated":
            prop.measure_r_max(x[:8])
        found = find_layers(prop.plan)
        picked = choose_layers(found, chosen)
        single = last_layer.spread(prop, x) if images is None else images
        if "layers" in parts:
            rows = layer_table(prop, x, picked, samples, seed)
            made.append(layers.exhibit(rows, len(x), samples))
        if "distribution" in parts:
            depths = _depths(prop, found, picked if chosen != "all" else None)
            pairs = distribution.pairs(prop, x[single[-1]], depths, channels, seed=seed)
            made.append(distribution.exhibit(pairs, indices[single[-1]]))
        if "last-layer" in parts:
            own_labels, own_names = [labels[i] for i in single], [indices[i] for i in single]
            shown = last_layer.last_layer(prop, x[single], own_labels, own_names, n=n, seed=seed)
            made.append(last_layer.exhibit(shown, names, n, ordered=images is None))
        if "cost" in parts:
            made.append(cost.memory_exhibit(cost.layer_memory(prop.plan), False))
            made += [cost.memory_exhibit(cost.paper_memory(), True), cost.terms_exhibit()]
    if "toy" in parts:
        made += toy.exhibits(toy.measure(seed=seed))
    if "margin-map" in parts:
        made.append(margin_map.exhibit(margin_map.measure()))
    return made


def _depths(prop: Propagator, found: list[Layer], picked: list[Layer] | None) -> list[Layer]:
    """The layers of the distribution figure: at most eight, or three evenly spaced and the last."""
    wide = [la for la in picked or found if prop.plan.steps[la.slot - 1].out_shape[0] > 1]
    if not wide:
        raise InvalidInput(
            "the distribution figure needs a layer of two channels or more, and none of the "
            "chosen ones has them: choose another layer, or other parts."
        )
    if picked is not None:
        return wide[:8]
    numbered = [la for la in wide if la.number is not None]
    spaced = choose_layers(numbered, "paper")
    return list(dict.fromkeys([*spaced[:: max(1, len(spaced) // 2)][:3], numbered[-1]]))


def write(
    shown: Sequence[Exhibit],
    folder: Path | str,
    title: str = "Inside the network",
) -> list[Path]:
    """Write every figure (PNG, SVG), the data behind it (CSV) and the page into a folder."""
    from covprop.inspect.page import render

    files = {name: content for e in shown for name, content in e.files.items()}
    files["inspect.html"] = render(shown, title, LEAD).encode()
    return [write_file(Path(folder) / name, content) for name, content in files.items()]
