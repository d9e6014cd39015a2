"""The small residual network of the searches on a CPU in results/tried.md: 174,562 weights.

covprop train cifar10/minutes/late-muon-0.25 --epochs 9 --data DATA \\
    --set model=benchmarks/small_resnet.py:build --set data.holdout=5000
"""

from torch import Tensor, nn


class Block(nn.Module):
    """Two convolutions before which norm and ReLU stand, beside a convolution of 1 × 1."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Sequential(
            nn.BatchNorm2d(before), nn.ReLU(), nn.Conv2d(before, after, 3, stride, 1, bias=False)
        )
        self.two = nn.Sequential(
            nn.BatchNorm2d(after), nn.ReLU(), nn.Conv2d(after, after, 3, 1, 1, bias=False)
        )
        self.skip = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.skip(x) + self.two(self.one(x))


def build(num_classes: int, image_shape: tuple[int, int, int]) -> nn.Module:
    """For images of 32 × 32 pixels."""
    return nn.Sequential(
        nn.Conv2d(image_shape[0], 24, 3, 2, 1, bias=False),
        Block(24, 24, 1),
        Block(24, 48, 2),
        Block(48, 96, 2),
        nn.BatchNorm2d(96),
        nn.ReLU(),
        nn.AvgPool2d(4),
        nn.Flatten(),
        nn.Linear(96, num_classes),
    )
