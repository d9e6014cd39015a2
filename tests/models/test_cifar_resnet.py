"""The keys and shapes that published checkpoints of these networks hold."""

import pytest
import torch
from torch import nn

from covprop.models import build

CIFAR = {"num_classes": 10, "image_shape": (3, 32, 32)}


@pytest.mark.parametrize(("depth", "count"), [(20, 272_474), (110, 1_730_714)])
def test_parameters_as_published(depth: int, count: int) -> None:
    net = build(f"cifar_resnet{depth}", **CIFAR)
    assert sum(p.numel() for p in net.parameters()) == count
    assert sum(isinstance(m, nn.Conv2d | nn.Linear) for m in net.modules()) == depth + 2


def test_keys_as_published() -> None:
    keys = build("cifar_resnet20", **CIFAR).state_dict()
    assert {k.rsplit(".", 1)[0] for k in keys if "layer" not in k} == {"conv1", "bn1", "fc"}
    norm = {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}
    block = {f"bn{i}.{k}" for i in (1, 2) for k in norm} | {"conv1.weight", "conv2.weight"}
    shortcut = {"downsample.0.weight"} | {f"downsample.1.{k}" for k in norm}
    for stage in (1, 2, 3):
        for i in range(3):
            prefix = f"layer{stage}.{i}."
            expected = block | (shortcut if stage > 1 and i == 0 else set())
            assert {k.removeprefix(prefix) for k in keys if k.startswith(prefix)} == expected
    assert keys["layer3.0.downsample.0.weight"].shape == (64, 32, 1, 1)


def test_weights_start_by_the_outgoing_fan() -> None:
    """Normal of variance 2 / (k² · channels out), also where the channels in are others."""
    net = build("cifar_resnet20", **CIFAR)
    for conv in (net.conv1, net.layer2[0].conv1, net.layer3[0].downsample[0], net.layer3[2].conv2):
        expected = (2 / (conv.kernel_size[0] ** 2 * conv.out_channels)) ** 0.5
        assert abs(conv.weight.std().item() / expected - 1) < 0.15


def test_forward_against_functional_calls() -> None:
    net = build("cifar_resnet20", **CIFAR, width=2).eval()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean)
    x = torch.rand(3, 3, 32, 32)
    y = net.bn1(net.conv1(x)).clamp(min=0)
    for stage in (net.layer1, net.layer2, net.layer3):
        for block in stage:
            inner = block.bn2(block.conv2(block.bn1(block.conv1(y)).clamp(min=0)))
            y = (inner + block.downsample(y)).clamp(min=0)
    expected = y.mean((2, 3)) @ net.fc.weight.T + net.fc.bias
    torch.testing.assert_close(net(x), expected)
