"""Networks that several tests share: in every style of code, of known answers, a user's own."""

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(channels)
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        y = self.conv(self.relu(self.bn(x)))
        y += x
        return y


class Net(nn.Module):
    """Functional calls, +=, reused and in-place modules, nested blocks, view by size, concat."""

    def __init__(self, classes: int = 4, norm: bool = True) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 6, 3, padding=1)
        self.blocks = nn.Sequential(Block(6), Block(6))
        if not norm:
            for block in self.blocks:
                block.bn = nn.Identity()
        self.pointwise = nn.Parameter(0.3 * torch.randn(6, 6, 1, 1))
        self.gain = nn.Parameter(torch.rand(12, 1, 1) + 0.5)
        self.act = nn.ReLU(inplace=True)
        self.head = nn.Linear(12, 8)
        self.last = nn.Linear(8, classes)

    def forward(self, x: Tensor, features: bool = False, mask: Tensor | None = None) -> Tensor:
        x = self.act(self.stem(x))
        x = self.blocks(x)
        y = F.conv2d(F.relu(x), self.pointwise * 0.5)
        x = torch.cat([x, y], dim=1) * self.gain
        if features:
            return x
        x = F.avg_pool2d(self.act(x), 2)
        x = x.mean((2, 3))
        x = x.view(x.size(0), -1)
        return self.last(self.act(self.head(x)))


def net(**options: bool) -> tuple[Net, Tensor]:
    return Net(**options), torch.rand(5, 2, 8, 8)


class HalfSpace(nn.Module):
    """Class 1 where w·x > b: P(class 1) = Φ((w·x − b)/σ) for |w| = 1, so all is known."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        w = torch.randn(16, generator=generator)
        self.register_buffer("w", w / w.norm())

    def forward(self, x: Tensor) -> Tensor:
        margin = x.flatten(1) @ self.w - 0.2
        return torch.stack([torch.zeros_like(margin), margin, margin - 9], 1)


class Written(nn.Module):
    """A function of the module and its image, and a linear layer."""

    def __init__(self, function: Callable[[nn.Module, Tensor], Tensor], features: int = 36) -> None:
        super().__init__()
        self.function, self.last = function, nn.Linear(features, 2)
        self.register_buffer("scale", torch.tensor([0.5, 2.0, 4.0, 3.0]))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.inner = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self, x))


def own_net(folder: Path, layers: str, parameters: str = "num_classes, image_shape") -> str:
    """Write folder/net.py, whose `build` returns a Sequential of `layers`; its name as a model."""
    file = folder / "net.py"
    file.write_text(
        f"from torch import nn\ndef build({parameters}):\n    return nn.Sequential({layers})\n"
    )
    return f"{file}:build"
