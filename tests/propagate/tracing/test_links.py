"""A propagator does not go on with layers that its model no longer has."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from covprop import PAPER, InvalidInput, Propagator

SHAPE = (3, 4, 4)
X = torch.rand(2, *SHAPE, generator=torch.Generator().manual_seed(0))


class Scale(nn.Module):
    """Has no layer and no parameter: the trace keeps nothing of it but a product."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Conv2d(3, 4, 1), nn.Identity())])
        self.scale = Scale()
        self.gain = nn.PReLU()
        self.last = nn.Linear(64, 3)
        self.unused = nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.last(torch.flatten(self.scale(x) * self.gain.weight, 1))


def put(path: str, module: nn.Module) -> Callable[[Net], None]:
    return lambda net: net.set_submodule(path, module)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put("last", nn.Linear(64, 3)), "layer last was replaced"),
        (put("blocks.0.0", nn.Conv2d(3, 4, 1)), r"layer blocks\.0\.0 was replaced"),
        (put("blocks.0.1", nn.ReLU()), r"layer blocks\.0\.1 was replaced"),
        (put("blocks.0", nn.Sequential(nn.Conv2d(3, 4, 1))), r"layer blocks\.0 was replaced"),
        (put("scale", nn.Identity()), "layer scale was replaced"),
        (put("gain", nn.PReLU()), "layer gain was replaced"),
        (lambda net: delattr(net, "last"), "layer last was replaced"),
        (lambda net: net.blocks[0].append(nn.ReLU()), r"layer blocks\.0\.2 was added"),
    ],
)
def test_every_pass_notices_a_layer_that_was_replaced(
    change: Callable[[Net], None], words: str
) -> None:
    net = Net()
    prop = Propagator(net, 0.25, SHAPE, PAPER.but(r_max="estimated"), calibrated=True)
    twin = copy.deepcopy(prop)
    prop(X)
    change(net)
    for use in (prop, prop.calibrate, prop.measure_r_max):
        with pytest.raises(InvalidInput, match=f"{words} since the propagator was built: build"):
            use(X)
    with pytest.raises(InvalidInput, match=words):
        prop.logit_covariance()
    assert twin(X).cov.shape == (3, 3)  # has a model of its own


def test_another_model_in_its_place_is_noticed() -> None:
    prop = Propagator(nn.Sequential(nn.Flatten(), nn.Linear(48, 3)), 0.25, SHAPE)
    prop.model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
    with pytest.raises(InvalidInput, match="the model was replaced"):
        prop(X)


def test_a_compiled_pass_notices_it_too() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
    prop = Propagator(net, 0.25, SHAPE)
    prop.compile(backend="eager")
    prop(X)
    net[1] = nn.Linear(48, 3)
    with pytest.raises(InvalidInput, match="layer 1 was replaced"):
        prop(X)


def test_changes_that_keep_the_layers_are_none() -> None:
    """Compiled in place, parametrized and back, with other weights, or unused by forward."""
    net = Net()
    prop = Propagator(net, 0.25, SHAPE)
    net.unused = nn.Linear(2, 2)
    net.loss = nn.CrossEntropyLoss()
    net.load_state_dict(
        {k: 2 * v for k, v in net.state_dict().items() if "unused" not in k}, strict=False
    )
    net.last = torch.compile(net.last, backend="eager")  # type: ignore[assignment]
    expected = Propagator(net, 0.25, SHAPE)(X)
    torch.testing.assert_close(prop(X).cov, expected.cov)
    parametrizations.weight_norm(net.get_submodule("blocks.0.0"))
    torch.testing.assert_close(prop(X).cov, expected.cov)
    parametrize.remove_parametrizations(net.get_submodule("blocks.0.0"), "weight")
    torch.testing.assert_close(prop(X).mean, expected.mean)
