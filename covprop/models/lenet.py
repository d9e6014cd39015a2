"""LeNet with average pools: three convolutions and two linear layers."""

from typing import Annotated

import torch
from torch import Tensor, nn

from covprop.errors import InvalidInput
from covprop.options import Range


class LeNet(nn.Module):
    """Three times (3×3 convolution, ReLU, 2×2 average pool), then two linear layers.

    The convolutions have `width`, 2 `width` and 4 `width` channels, the hidden linear layer
    8 `width` units. Works on images of 8×8 pixels and up, with any number of channels.

    Example:
        >>> LeNet(num_classes=10, image_shape=(1, 28, 28))(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        *,
        num_classes: int,
        image_shape: tuple[int, int, int],
        width: Annotated[int, Range(1)] = 32,
    ) -> None:
        super().__init__()
        channels, height, breadth = image_shape
        if min(height, breadth) < 8:
            raise InvalidInput(
                f"LeNet halves the image three times and needs at least 8×8 pixels, "
                f"not {height}×{breadth}; enlarge the images."
            )
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.conv3 = nn.Conv2d(2 * width, 4 * width, 3, padding=1)
        self.pool = nn.AvgPool2d(2)
        self.relu = nn.ReLU()
        self.linear1 = nn.Linear(4 * width * (height // 8) * (breadth // 8), 8 * width)
        self.linear2 = nn.Linear(8 * width, num_classes)
        # torch's default shrinks the signal in every layer, and nothing here restores it.
        for name, parameter in self.named_parameters():
            if name.endswith("weight"):
                nn.init.kaiming_normal_(parameter, nonlinearity="relu")
            else:
                nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu(self.conv1(x)))
        x = self.pool(self.relu(self.conv2(x)))
        x = self.pool(self.relu(self.conv3(x)))
        x = torch.flatten(x, 1)
        return self.linear2(self.relu(self.linear1(x)))
