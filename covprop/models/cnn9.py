"""The 9-layer CNN on which methods for noisy labels are compared."""

from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from covprop.errors import InvalidInput


def _convs(*channels: int, padding: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(channels):
        layers += [
            nn.Conv2d(inputs, outputs, 3, padding=padding, bias=False),
            nn.BatchNorm2d(outputs),
            nn.LeakyReLU(0.01),
        ]
    return layers


class CNN9(nn.Module):
    """Nine 3×3 convolutions, each with batch norm and LeakyReLU(0.01), and one linear layer.

    128, 128, 128 | pool, dropout | 256, 256, 256 | pool, dropout | 512, 256, 128 unpadded |
    global average | linear. The noisy-label literature pools by maximum; a maximum has no
    covariance rule, so `pool="average"` is the default here and `pool="max"` the literature's.
    Dropout acts on whole channels, and only in training.

    Example:
        >>> CNN9(num_classes=10, image_shape=(3, 32, 32))(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        *,
        num_classes: int,
        image_shape: tuple[int, int, int],
        pool: Literal["average", "max"] = "average",
        dropout: float = 0.25,
    ) -> None:
        super().__init__()
        channels, height, breadth = image_shape
        if min(height, breadth) < 28:
            raise InvalidInput(
                f"cnn9 needs images of at least 28×28 pixels, not {height}×{breadth}; "
                "choose lenet for smaller ones."
            )
        if not 0 <= dropout < 1:
            raise InvalidInput(f"cnn9 needs a dropout in [0, 1), not {dropout}.")

        def rest() -> list[nn.Module]:
            halve = nn.AvgPool2d(2) if pool == "average" else nn.MaxPool2d(2)
            return [halve, nn.Dropout2d(dropout)]

        self.features = nn.Sequential(
            *_convs(channels, 128, 128, 128, padding=1),
            *rest(),
            *_convs(128, 256, 256, 256, padding=1),
            *rest(),
            *_convs(256, 512, 256, 128, padding=0),
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.linear = nn.Linear(128, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.features(x))
        return self.linear(torch.flatten(x, 1))
