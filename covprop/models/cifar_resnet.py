"""ResNet-20 and ResNet-110 for 32×32 images, as the randomized-smoothing literature trains them.

Three stages of `width` = 16, 32 and 64 channels, (depth − 2) / 6 blocks of two 3×3 convolutions
each, batch norm, and a 1×1 convolution on the shortcut where the shape changes (He et al. 2016,
option B). The parameters are called as in the published training code of Cohen et al. and of MACER
(conv1, layer1.0.conv1, …, fc), so that its checkpoints load.
"""

import math
from typing import Annotated

from torch import Tensor, nn

from covprop.options import Range


class Block(nn.Module):
    """relu(x' + bn(conv(relu(bn(conv(x)))))), x' = x or its 1×1 projection."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.relu = nn.ReLU()
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.downsample = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(y)) + self.downsample(x))


class CifarResNet(nn.Module):
    """A ResNet of `depth` 6k + 2 layers.

    Example:
        >>> net = CifarResNet(20, num_classes=10, image_shape=(3, 32, 32))
        >>> sum(p.numel() for p in net.parameters())
        272474
    """

    def __init__(
        self,
        depth: int,
        *,
        num_classes: int,
        image_shape: tuple[int, int, int],
        width: Annotated[int, Range(1)] = 16,
    ) -> None:
        super().__init__()
        blocks = (depth - 2) // 6
        self.conv1 = nn.Conv2d(image_shape[0], width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.layer1 = self._stage(width, width, blocks, 1)
        self.layer2 = self._stage(width, 2 * width, blocks, 2)
        self.layer3 = self._stage(2 * width, 4 * width, blocks, 2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(4 * width, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                fan = module.kernel_size[0] * module.kernel_size[1] * module.out_channels
                nn.init.normal_(module.weight, 0.0, math.sqrt(2.0 / fan))

    @staticmethod
    def _stage(inside: int, outside: int, blocks: int, stride: int) -> nn.Sequential:
        rest = [Block(outside, outside, 1) for _ in range(blocks - 1)]
        return nn.Sequential(Block(inside, outside, stride), *rest)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(self.flatten(self.avgpool(x)))
