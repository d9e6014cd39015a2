"""A network for CIFAR-10 and images for it, to be written to files and read back."""

import torch
from torch import nn

from covprop.data import DATASETS
from covprop.models import build

FACTS = DATASETS["cifar10"]
DATA = {
    "num_classes": FACTS.num_classes,
    "image_shape": FACTS.image_shape,
    "mean": FACTS.mean,
    "std": FACTS.std,
}
X = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def resnet20() -> nn.Module:
    """A network with weights and batch statistics of its own."""
    torch.manual_seed(1)
    made = build("cifar_resnet20", num_classes=10, image_shape=(3, 32, 32))
    for module in made.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
    return made.eval()
