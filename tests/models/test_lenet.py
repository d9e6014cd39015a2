import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

from covprop.models import LeNet


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 15), (1, 28, 28), (3, 32, 32), (2, 8, 64)])
def test_any_size_from_eight_by_eight(shape: tuple[int, int, int]) -> None:
    net = LeNet(num_classes=5, image_shape=shape, width=3)
    assert net(torch.rand(2, *shape)).shape == (2, 5)


def test_three_convolutions_and_two_linear_layers() -> None:
    net = LeNet(num_classes=10, image_shape=(1, 28, 28))
    assert {name: tuple(p.shape) for name, p in net.named_parameters()} == {
        "conv1.weight": (32, 1, 3, 3),
        "conv1.bias": (32,),
        "conv2.weight": (64, 32, 3, 3),
        "conv2.bias": (64,),
        "conv3.weight": (128, 64, 3, 3),
        "conv3.bias": (128,),
        "linear1.weight": (256, 128 * 3 * 3),
        "linear1.bias": (256,),
        "linear2.weight": (10, 256),
        "linear2.bias": (10,),
    }


def test_leaves_chance_within_a_hundred_steps_on_noisy_digits() -> None:
    digits = load_digits()
    x = torch.tensor(digits.images[:, None] / 16, dtype=torch.float32)
    y = torch.tensor(digits.target)
    net = LeNet(num_classes=10, image_shape=(1, 8, 8), width=16)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for _ in range(100):
        rows = torch.randint(len(y), (64,))
        noisy = x[rows] + 0.25 * torch.randn(64, 1, 8, 8)
        loss = F.cross_entropy(net(noisy), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert (net(x).argmax(1) == y).float().mean() > 0.5
