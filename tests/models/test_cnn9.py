import torch
from torch import nn

from covprop.models import CNN9


def test_layers_are_those_of_the_literature() -> None:
    net = CNN9(num_classes=10, image_shape=(3, 32, 32), pool="max")
    convs = [layer for layer in net.modules() if isinstance(layer, nn.Conv2d)]
    assert [c.out_channels for c in convs] == [128, 128, 128, 256, 256, 256, 512, 256, 128]
    assert [c.padding for c in convs] == [(1, 1)] * 6 + [(0, 0)] * 3
    assert all(c.bias is None and c.kernel_size == (3, 3) for c in convs)
    kinds = [type(layer) for layer in net.features]
    assert kinds.count(nn.BatchNorm2d) == kinds.count(nn.LeakyReLU) == 9
    assert kinds.count(nn.MaxPool2d) == kinds.count(nn.Dropout2d) == 2
    # The two pools part three convolutions each, and every convolution has its norm and slope.
    triple = [nn.Conv2d, nn.BatchNorm2d, nn.LeakyReLU] * 3
    assert kinds == [*triple, nn.MaxPool2d, nn.Dropout2d] * 2 + triple
    assert {a.negative_slope for a in net.features if isinstance(a, nn.LeakyReLU)} == {0.01}
    assert {d.p for d in net.features if isinstance(d, nn.Dropout2d)} == {0.25}
    channels = [3, 128, 128, 128, 256, 256, 256, 512, 256, 128]
    count = sum(9 * channels[i] * channels[i + 1] + 2 * channels[i + 1] for i in range(9))
    assert sum(p.numel() for p in net.parameters()) == count + 128 * 10 + 10


def test_dropout_is_off_in_evaluation() -> None:
    net = CNN9(num_classes=10, image_shape=(3, 28, 28))
    x = torch.rand(2, 3, 28, 28)
    assert not torch.equal(net(x), net(x))
    net.eval()
    torch.testing.assert_close(net(x), net(x), rtol=0, atol=0)
