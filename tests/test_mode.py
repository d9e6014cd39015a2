import pytest
import torch
from torch import nn

from covprop.mode import attributes_kept, called_with, copied, switched, tensors_of


class Merging(nn.Module):
    """As low-rank adapters do: one matrix where nothing is trained, two where it is."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2, bias=False)
        self.low = nn.Parameter(torch.ones(2, 2))
        self.merged = False

    def train(self, mode: bool = True) -> "Merging":
        super().train(mode)
        if self.merged == mode:
            self.layer.weight.data.add_(self.low.data, alpha=-1.0 if mode else 1.0)
            self.merged = not mode
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x)
        return out if self.merged else out + x @ self.low.T


def test_every_module_gets_its_own_mode_back() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.Sequential(nn.BatchNorm1d(2)))
    model.train()
    model[1].eval()
    with switched(model, training=False):
        assert not any(module.training for module in model.modules())
    assert model.training
    assert model[2][0].training
    assert not model[1].training


def test_a_network_whose_train_does_more_is_left_as_it_was() -> None:
    model = Merging()
    model.train()
    before = model.layer.weight.detach().clone()
    x = torch.rand(3, 2)
    y = model(x)
    with switched(model, training=False):
        assert model.merged
        assert torch.allclose(model(x), y)
    assert not model.merged
    assert torch.allclose(model.layer.weight, before)
    assert torch.allclose(model(x), y)


def test_the_mode_comes_back_after_an_error() -> None:
    model = nn.Sequential(nn.Dropout())
    with pytest.raises(ValueError, match="inside"), switched(model, training=False):
        raise ValueError("inside")
    assert model.training
    assert model[0].training


class Twice(nn.Module):
    """One layer under two names, a weight of it in another layer too, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.other = nn.Linear(2, 2), nn.Linear(2, 2)
        self.other.weight = self.first.weight
        self.both = nn.Sequential(self.first, nn.Tanh(), self.first)
        self.register_buffer("shift", torch.ones(2))
        self.register_buffer("none", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.other(self.both(x)) + self.shift


def test_other_tensors_are_in_every_place_and_leave_all_of_them() -> None:
    model, x = Twice(), torch.rand(3, 2)
    before, expected = tensors_of(model), model(x)
    assert len(before) == 5  # two layers of two, of which one weight is shared, and the buffer
    instead = {value: 2 * value.detach() for value in before.values()}
    found = called_with(model, instead, x)
    assert all(value is before[name] for name, value in tensors_of(model).items())
    assert torch.equal(model(x), expected)
    doubled = Twice()
    doubled.load_state_dict({name: 2 * value for name, value in model.state_dict().items()})
    torch.testing.assert_close(found, doubled(x))
    torch.testing.assert_close(
        called_with(model, {model.shift: torch.zeros(2)}, x), expected - torch.ones(2)
    )


def test_they_leave_after_an_error_too() -> None:
    model = Twice()
    before = tensors_of(model)
    with pytest.raises(RuntimeError):
        called_with(model, {model.first.weight: torch.zeros(3, 3)}, torch.rand(3, 2))
    assert all(value is before[name] for name, value in tensors_of(model).items())


def test_attributes_are_those_of_before_and_new_ones_are_told() -> None:
    model = nn.Sequential(Merging(), nn.ReLU())
    names = [set(vars(module)) for module in model.modules()]
    with attributes_kept(model) as made:
        model.new, model[0].new, model[0].merged = 1, 2, True
        del model[1].inplace
    assert made == {"new": 1}
    assert [set(vars(module)) for module in model.modules()] == names
    assert (model[0].merged, model[1].inplace) == (False, False)


class Named(dict):  # type: ignore[type-arg]
    """A dict that copy.copy cannot copy."""

    def __reduce_ex__(self, protocol: object) -> str:
        raise TypeError("not to be copied")


def test_what_is_in_lists_dicts_and_buffers_is_that_of_before() -> None:
    model = nn.Sequential(Twice())
    layer, shift = model[0], model[0].shift
    layer.kept, layer.grids = [1], Named(a=2)
    with attributes_kept(model) as made:
        layer.kept.append(3)
        layer.grids |= {"a": 4, "b": 5}
        layer.shift = layer.shift + 1
        layer.none = torch.zeros(1)
        layer.register_buffer("grid", torch.ones(1))
        layer.extra = nn.ReLU()
    assert (layer.kept, layer.grids) == ([1], {"a": 2})
    assert layer.shift is shift
    assert layer.none is None
    assert [name for name, _ in layer.named_children()] == ["first", "other", "both"]
    assert list(layer.state_dict()) == list(Twice().state_dict())
    found = {name: value.tolist() for name, value in made.items()}
    assert found == {"0.shift": [2.0, 2.0], "0.none": [0.0], "0.grid": [1.0]}


def test_a_copy_comes_without_the_graph_of_what_forward_kept() -> None:
    """Torch copies no such tensors, and those in a list or dict were left in."""
    model = nn.Sequential(nn.Linear(2, 2))
    out = model(torch.rand(3, 2))
    model.out, model.features, model.named = out, [out], {"last": 2 * out}
    twin = copied(model)
    for value in (twin.out, *twin.features, *twin.named.values()):
        assert not value.requires_grad
    assert torch.equal(twin.named["last"], model.named["last"])
    assert twin[0].weight is not model[0].weight
