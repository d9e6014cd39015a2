"""The small network of the searches is the one they name, and can be propagated."""

import importlib.util
from pathlib import Path

import torch

import covprop

FILE = Path(__file__).parents[2] / "benchmarks" / "small_resnet.py"


def test_it_is_the_network_of_the_searches() -> None:
    spec = importlib.util.spec_from_file_location("small_resnet", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.build(10, (3, 32, 32))
    assert sum(p.numel() for p in model.parameters()) == 174_562
    assert model(torch.rand(2, 3, 32, 32)).shape == (2, 10)
    covprop.check(model.eval(), input_shape=(3, 32, 32))
