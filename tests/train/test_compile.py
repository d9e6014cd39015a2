"""train.compile: what stays the same, and what is compiled at all."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from covprop import data, methods
from covprop.run import Run
from covprop.train import Recipe, train
from covprop.train.distributed import World
from covprop.train.evaluate import accuracy
from covprop.train.update import Update

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own parts

Make = Callable[..., Recipe]
InParts = Callable[..., None]

NET = """
from torch import nn
class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.one, self.drop, self.two = nn.Linear(64, 16), nn.Dropout(0.5), nn.Linear(16, classes)
    def forward(self, x):
        return self.two(self.drop(self.one(x.flatten(1))))
def build(num_classes, image_shape):
    return Net(num_classes)
"""


def test_dropout_is_a_matter_of_seed_and_step(
    tmp_path: Path, tiny: Make, train_in_parts: InParts
) -> None:
    """Compiled or not, so that a run that goes on, with a step that is not, is the same run."""
    (tmp_path / "net.py").write_text(NET)
    model = {"name": f"{tmp_path / 'net.py'}:build"}
    train(tiny(model=model), tmp_path / "plain")
    recipe = tiny(compile=True, model=model)
    train(recipe, tmp_path / "whole")
    train_in_parts(recipe, tmp_path / "parts", lambda trainer: trainer.step == 3)
    plain, *compiled = (
        load_file(tmp_path / run / "model.safetensors") for run in ("plain", "whole", "parts")
    )
    for weights in compiled:  # other masks would change them in the first digit
        for name, weight in weights.items():
            torch.testing.assert_close(weight, plain[name], rtol=1e-3, atol=1e-4)


BLOCK = """
from torch import nn
class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.one, self.first = nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.two, self.second = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.relu, self.pool, self.out = nn.ReLU(), nn.AvgPool2d(4), nn.Linear(32, classes)
    def forward(self, x):
        x = self.relu(self.first(self.one(x)))
        x = x + self.relu(self.second(self.two(x)))
        return self.out(self.pool(x).flatten(1))
def build(num_classes, image_shape):
    return Net(num_classes)
"""
CONSISTENCY = {"name": "consistency", "samples": 2, "weight": 5.0}


@pytest.mark.skipif(
    os.environ.get("COVPROP_COMPILE") != "1",
    reason="compiling takes some ten seconds each; set COVPROP_COMPILE=1",
)
@pytest.mark.parametrize(
    ("method", "weighting"),
    [
        ({"name": "gaussian"}, None),
        (CONSISTENCY, None),
        (CONSISTENCY | {"reach": 0.5, "from_epoch": 1}, None),
        ({"name": "macer", "samples": 4, "from_epoch": 1}, None),
        ({"name": "smoothadv", "steps": 2, "warmup": 1}, None),
        ({"name": "smoothadv", "steps": 1, "warmup": 3}, None),
        ({"name": "radius", "estimator": "shared", "from_epoch": 1}, None),
        ({"name": "radius", "estimator": "shared", "preset": "reference", "from_epoch": 1}, None),
        (
            {"name": "radius", "estimator": "linearized", "mean": "sample", "from_epoch": 1},
            None,
        ),
        ({"name": "radius", "estimator": "shared"}, {"name": "radius"}),
        (CONSISTENCY, {"name": "radius", "from_epoch": 1}),
        (CONSISTENCY, {"name": "probability", "from_epoch": 1}),
        (CONSISTENCY, {"name": "radius", "by": "sampling", "from_epoch": 1}),
    ],
    ids=[
        *("gaussian", "consistency", "reach", "macer", "smoothadv", "smoothadv-grows"),
        *("radius", "reference", "linearized", "radius-weighted"),
        *("weighted", "weighted-probability", "weighted-sampling"),
    ],
)
def test_every_method_with_batch_norm_is_the_same_up_to_rounding(
    tmp_path: Path, tiny: Make, method: dict[str, Any], weighting: Any
) -> None:
    (tmp_path / "net.py").write_text(BLOCK)
    model = {"name": f"{tmp_path / 'net.py'}:build"}
    # Nine steps: an attack along a normalised gradient makes more of rounding in every one.
    options = {"optimizer": "sgd", "lr": 0.01, "epochs": 3, "schedule": "constant"}
    options |= {"batch_size": 400}
    rows, weights = [], []
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    for compiled in (False, True):
        out = tmp_path / str(compiled)
        train(tiny(method, weighting, model, compile=compiled, **options), out)
        rows.append(Run(out).metrics())
        weights.append(load_file(out / "model.safetensors"))
        assert bool(torch._dynamo.utils.counters["stats"]["unique_graphs"]) == compiled
    for one, two in zip(*rows, strict=True):
        for key in ("loss", "train_accuracy"):
            assert two[key] == pytest.approx(one[key], rel=1e-4)
        if one["estimated_radius"] is not None:
            assert two["estimated_radius"] == pytest.approx(one["estimated_radius"], rel=1e-4)
    for name, weight in weights[0].items():
        torch.testing.assert_close(weights[1][name], weight, rtol=1e-4, atol=1e-5)


def test_a_weighted_method_gives_the_compiler_whole_losses() -> None:
    """What torch.compile makes of a named tuple's `_replace` depends on its version."""
    place: dict[str, Any] = {"sigma": 0.25, "input_shape": (1, 8, 8)}
    method = methods.WithRadius(methods.build("gaussian", **place), of="probability", **place)
    step = torch.compile(method, backend="eager")
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    x, y, generator = torch.rand(4, 1, 8, 8), torch.arange(4), torch.Generator()
    for made in zip(
        step(net, x, y, epoch=0, generator=generator.manual_seed(0)),
        method(net, x, y, epoch=0, generator=generator.manual_seed(0)),
        strict=True,
    ):
        torch.testing.assert_close(*made)


def test_evaluation_is_not_compiled(tiny: Make) -> None:
    """It would be compiled for another mode and for a last, smaller batch."""
    compiled: list[Any] = []

    def count(graph: Any, inputs: Any) -> Any:
        compiled.append(inputs)
        return graph.forward

    class Net(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.flatten(1))

    model = Net(64, 10)
    model.compile(backend=count)
    test, here = data.load("digits", "test"), World(0, 1, torch.device("cpu"))
    plain = accuracy(model, test, tiny(compile=True), here)
    assert not compiled
    model(torch.rand(4, 1, 8, 8))  # and nothing of that lasts
    assert compiled
    torch.compiler.reset()
    assert plain == accuracy(model, test, tiny(), here)


def test_a_process_may_compile_many_recipes(
    tmp_path: Path, tiny: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch would give up on a function after eight of its versions; what others compile in the
    process is no matter of a run."""
    compiler, step = torch._dynamo.config, Update.__call__
    before, limits = compiler.recompile_limit, set()

    def note(self: Update, batch: data.Batch, epoch: int) -> None:
        step(self, batch, epoch)
        limits.add(compiler.recompile_limit)

    monkeypatch.setattr(Update, "__call__", note)
    train(tiny(epochs=1, compile=True), tmp_path)
    assert limits == {64}
    assert compiler.recompile_limit == before < 64
