import torch
from torch import nn

from covprop.explore.layers import at_place, layers_of, place
from covprop.propagate.propagator import Propagator


def test_layers_are_the_noisy_steps_with_two_channels() -> None:
    conv, linear = nn.Conv2d(1, 4, 3), nn.Linear(16, 3)
    model = nn.Sequential(nn.AvgPool2d(2), conv, nn.ReLU(), nn.Flatten(), linear)
    found = layers_of(Propagator(model, 0.25, (1, 8, 8)).plan)
    assert [(layer.name, layer.kind) for layer in found] == [
        ("1", "nn.Conv2d"),
        ("2", "nn.ReLU"),
        ("3", "nn.Flatten"),
        ("4", "nn.Linear"),
    ]
    assert [layer.channels for layer in found] == [4, 4, 4, 3]


def test_the_middle_is_the_same_pixel_before_and_after_flattening() -> None:
    value = torch.arange(2 * 3 * 3 * 3.0).view(2, 3, 3, 3)
    assert place(value, 3) == [1, 1]
    assert torch.equal(at_place(value, 3), value[:, :, 1, 1])
    assert place(value.flatten(1), 3) == [4]
    assert torch.equal(at_place(value.flatten(1), 3), value[:, :, 1, 1])
    assert place(torch.zeros(2, 3), 3) == []
