"""Residual networks with the activation first: PreActResNet-18, 34, 50 and 101.

A block is x ↦ skip(x) + branch(x), where the branch is a chain of (norm, ReLU, convolution) and
the skip is x itself, or a 1×1 convolution of the first activation where the shape changes.
"""

import re
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covprop.errors import InvalidInput
from covprop.options import Range

DEPTHS = {
    18: ("basic", (2, 2, 2, 2)),
    34: ("basic", (3, 4, 6, 3)),
    50: ("bottleneck", (3, 4, 6, 3)),
    101: ("bottleneck", (3, 4, 23, 3)),
}
"""Layers -> kind of block, and how many blocks each of the four stages has."""

LARGE = 96
"""With `stem="auto"`, images with more pixels a side than this get the ImageNet stem."""


def _norm(kind: str, channels: int) -> nn.Module:
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    if kind == "act":
        from covprop.layers import ActNorm

        return ActNorm(channels)
    return nn.Identity()


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Conv2d | None:
    """A 1×1 convolution where a block changes the shape."""
    same = stride == 1 and inputs == outputs
    return None if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions."""

    expansion = 1

    def __init__(self, inputs: int, planes: int, stride: int, norm: str) -> None:
        super().__init__()
        bias = norm == "none"  # a norm shifts by itself
        self.norm1 = _norm(norm, inputs)
        self.conv1 = nn.Conv2d(inputs, planes, 3, stride, padding=1, bias=bias)
        self.norm2 = _norm(norm, planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=bias)
        self.shortcut = _shortcut(inputs, planes, stride)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(x))
        skip = x if self.shortcut is None else self.shortcut(h)
        h = self.conv1(h)
        h = self.conv2(F.relu(self.norm2(h)))
        return skip + h


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions; the last one widens four times."""

    expansion = 4

    def __init__(self, inputs: int, planes: int, stride: int, norm: str) -> None:
        super().__init__()
        bias = norm == "none"
        self.norm1 = _norm(norm, inputs)
        self.conv1 = nn.Conv2d(inputs, planes, 1, bias=bias)
        self.norm2 = _norm(norm, planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, padding=1, bias=bias)
        self.norm3 = _norm(norm, planes)
        self.conv3 = nn.Conv2d(planes, 4 * planes, 1, bias=bias)
        self.shortcut = _shortcut(inputs, 4 * planes, stride)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(x))
        skip = x if self.shortcut is None else self.shortcut(h)
        h = self.conv1(h)
        h = self.conv2(F.relu(self.norm2(h)))
        h = self.conv3(F.relu(self.norm3(h)))
        return skip + h


class PreActResNet(nn.Module):
    """Stem, four stages of residual blocks, norm, ReLU, global average, linear layer.

    Args:
        depth: 18 or 34 (basic blocks), 50 or 101 (bottlenecks).
        width: channels of the first stage; each later stage has twice as many.
        norm: "batch", "none" or "act" (per-channel scale and shift set from the first batch).
        stem: "cifar" (3×3 convolution), "imagenet" (7×7 convolution of stride 2, then a 3×3
            average pool of stride 2), or "auto": by image size.

    Example:
        >>> net = PreActResNet(18, num_classes=10, image_shape=(3, 32, 32), width=8)
        >>> net(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        depth: int,
        *,
        num_classes: int,
        image_shape: tuple[int, int, int],
        width: Annotated[int, Range(1)] = 64,
        norm: Literal["batch", "none", "act"] = "batch",
        stem: Literal["auto", "cifar", "imagenet"] = "auto",
    ) -> None:
        super().__init__()
        if depth not in DEPTHS:
            raise InvalidInput(f"PreActResNet comes with {sorted(DEPTHS)} layers, not {depth}.")
        kind, counts = DEPTHS[depth]
        block = BasicBlock if kind == "basic" else Bottleneck
        channels, height, breadth = image_shape
        large = stem == "imagenet" or (stem == "auto" and min(height, breadth) > LARGE)

        bias = norm == "none"
        self.stem: nn.Module
        if large:
            self.stem = nn.Sequential(
                nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=bias),
                _norm(norm, width),
                nn.ReLU(),
                nn.AvgPool2d(3, stride=2, padding=1),
            )
        else:
            self.stem = nn.Conv2d(channels, width, 3, padding=1, bias=bias)

        blocks: list[nn.Module] = []
        inputs = width
        for stage, count in enumerate(counts):
            for i in range(count):
                stride = 2 if stage > 0 and i == 0 else 1
                blocks.append(block(inputs, width * 2**stage, stride, norm))
                inputs = width * 2**stage * block.expansion
        self.blocks = nn.Sequential(*blocks)
        self.norm = _norm(norm, inputs)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.linear = nn.Linear(inputs, num_classes)
        self._initialise(norm)

    def _initialise(self, norm: str) -> None:
        """He initialisation, and a start that keeps depth harmless where no batch is averaged.

        With L blocks of m convolutions each and no norm, the last convolution of a branch starts
        at zero and the others are scaled by L^(−1/(2m−2)), so that one step of gradient descent
        changes the output by an amount that does not grow with depth (Fixup, Zhang et al. 2019).
        The linear layer is not zeroed as there: the propagated covariance of the logits would
        start at zero with it. With act norm the branch has unit scale after its first batch, so
        only its last convolution is scaled, by L^(−1/2), and the sum of all branches stays bounded.
        """
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
        depth = len(self.blocks)
        for block in self.blocks:
            weights = [p for n, p in block.named_parameters() if re.match(r"conv\d.weight", n)]
            with torch.no_grad():
                if norm == "act":
                    weights[-1].mul_(depth**-0.5)
                elif norm == "none":
                    for weight in weights[:-1]:
                        weight.mul_(depth ** (-1 / (2 * len(weights) - 2)))
                    weights[-1].zero_()

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.stem(x))
        x = self.pool(F.relu(self.norm(x)))
        return self.linear(torch.flatten(x, 1))
