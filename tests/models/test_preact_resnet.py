import hashlib

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from covprop.models import PreActResNet

CIFAR = {"num_classes": 10, "image_shape": (3, 32, 32)}


def _count(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


# Counts of the common public implementations, to which the norm before the classifier adds a
# scale and a shift per channel: 512 channels for 18 and 34 layers, 2048 for 50 and 101.
@pytest.mark.parametrize(
    ("depth", "known"),
    [
        (18, 11_171_146 + 2 * 512),
        (34, 21_279_306 + 2 * 512),
        (50, 23_509_066 + 2 * 2048),
        (101, 42_501_194 + 2 * 2048),
    ],
)
def test_parameter_counts(depth: int, known: int) -> None:
    with torch.device("meta"):
        assert _count(PreActResNet(depth, **CIFAR)) == known


def _keys_digest(net: nn.Module) -> str:
    return hashlib.sha256("\n".join(net.state_dict()).encode()).hexdigest()[:12]


def test_state_dict_keys_are_stable() -> None:
    net = PreActResNet(18, **CIFAR, width=4)
    assert list(net.state_dict())[:3] == [
        "stem.weight",
        "blocks.0.norm1.weight",
        "blocks.0.norm1.bias",
    ]
    assert list(net.state_dict())[-2:] == ["linear.weight", "linear.bias"]
    # Saved runs are read by these keys: a change here breaks every one of them.
    assert _keys_digest(net) == "bcf8acecdc8b"
    assert _keys_digest(PreActResNet(50, **CIFAR, width=4, norm="none")) == "930e4b349193"


@pytest.mark.parametrize(
    ("stem", "size", "expected"),
    [
        ("auto", 32, 32),
        ("auto", 96, 96),
        ("auto", 128, 32),
        ("imagenet", 64, 16),
        ("cifar", 128, 128),
    ],
)
def test_stem_follows_the_image_size_unless_told(stem: str, size: int, expected: int) -> None:
    net = PreActResNet(18, num_classes=3, image_shape=(3, size, size), width=2, stem=stem)
    assert net.stem(torch.rand(1, 3, size, size)).shape == (1, 2, expected, expected)
    assert net(torch.rand(2, 3, size, size)).shape == (2, 3)


@pytest.mark.parametrize("depth", [18, 34, 50, 101])
def test_strides_halve_three_times(depth: int) -> None:
    net = PreActResNet(depth, **CIFAR, width=2).eval()
    out = net.blocks(net.stem(torch.rand(1, 3, 32, 32)))
    assert out.shape == (1, 2 * 8 * (4 if depth >= 50 else 1), 4, 4)
    convs = [n for n, m in net.named_modules() if isinstance(m, nn.Conv2d) and "shortcut" not in n]
    assert len(convs) + 1 == depth  # the linear layer is the last one counted


@pytest.mark.parametrize("norm", ["batch", "act", "none"])
def test_convolutions_have_a_bias_only_without_norm(norm: str) -> None:
    net = PreActResNet(18, num_classes=3, image_shape=(3, 128, 128), width=2, norm=norm)
    biased = {
        (m.bias is not None)
        for n, m in net.named_modules()
        if isinstance(m, nn.Conv2d) and not n.endswith("shortcut")
    }
    assert biased == {norm == "none"}


def test_block_adds_its_branch_to_the_skip() -> None:
    net = PreActResNet(18, **CIFAR, width=4).eval()
    block, x = net.blocks[2], torch.randn(2, 4, 8, 8)
    h = F.relu(block.norm1(x))
    branch = block.conv2(F.relu(block.norm2(block.conv1(h))))
    torch.testing.assert_close(block(x), F.conv2d(h, block.shortcut.weight, stride=2) + branch)


@pytest.mark.parametrize(("depth", "power"), [(34, -1 / 2), (101, -1 / 4)])
def test_without_norm_a_branch_starts_at_zero_and_scaled(depth: int, power: float) -> None:
    torch.manual_seed(1)
    net = PreActResNet(depth, **CIFAR, width=16, norm="none")
    for block in net.blocks:
        last = block.conv2 if depth == 34 else block.conv3
        assert last.weight.abs().max() == 0
        he = (2 / (block.conv1.in_channels * block.conv1.weight[0, 0].numel())) ** 0.5
        ratio = block.conv1.weight.std().item() / (he * len(net.blocks) ** power)
        assert ratio == pytest.approx(1, rel=0.1)
    # The signal keeps its scale through any depth, and the logits differ from each other.
    x = net.stem(torch.rand(4, 3, 32, 32))
    assert 0.05 < net.blocks(x).std() / x.std() < 20
    assert net(torch.rand(4, 3, 32, 32)).std() > 0


def _train(net: nn.Module, lr: float) -> float:
    """Mean loss over the last ten of 100 steps on digits; ln 10 = 2.3 at the start."""
    digits = load_digits()
    x = torch.tensor(digits.images[:, None] / 16, dtype=torch.float32)
    y = torch.tensor(digits.target)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    losses = []
    for _ in range(100):
        rows = torch.randint(len(y), (64,))
        loss = F.cross_entropy(net(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses[-10:]) / 10


@pytest.mark.parametrize(("norm", "lr"), [("none", 0.05), ("act", 0.01), ("batch", 0.05)])
def test_34_layers_train_whatever_the_norm(norm: str, lr: float) -> None:
    net = PreActResNet(34, num_classes=10, image_shape=(1, 8, 8), width=8, norm=norm)
    assert _train(net, lr) < 0.6


def test_without_the_scaled_start_34_layers_do_not_train() -> None:
    net = PreActResNet(34, num_classes=10, image_shape=(1, 8, 8), width=8, norm="none")
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    assert not _train(net, lr=0.05) < 2
