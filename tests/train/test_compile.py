"""train.compile: what stays the same, and what is compiled at all."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from covprop import data
from covprop.train import Recipe, train
from covprop.train.distributed import World
from covprop.train.evaluate import accuracy

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


def test_a_process_may_compile_many_recipes(tmp_path: Path, tiny: Make) -> None:
    """Torch would give up on a function after eight of its versions."""
    train(tiny(epochs=1, compile=True), tmp_path)
    assert torch._dynamo.config.recompile_limit >= 64
