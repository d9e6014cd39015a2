"""The network and the batch that a measurement runs on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from covprop import models
from covprop.errors import InvalidInput
from covprop.models.preact_resnet import LARGE

SIGMA = 0.25


@dataclass(frozen=True)
class Subject:
    """A model with random weights, and images of random pixels with random labels.

    Speed depends on none of these values; accuracy would. On a GPU the step runs in bfloat16 on
    channels-last images, on the CPU in float32.
    """

    model: str = "preact_resnet18"
    width: int | None = None
    norm: str | None = None
    image: int = 32
    channels: int = 3
    classes: int = 10
    device: torch.device = torch.device("cpu")  # noqa: RUF009 (immutable)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return self.channels, self.image, self.image

    @property
    def precision(self) -> str:
        return "bf16" if self.device.type == "cuda" else "fp32"

    @property
    def name(self) -> str:
        """A short name that tells subjects apart, fit for a file."""
        parts = [self.model.replace(".py:", "-").replace("/", "-")]
        parts += [f"w{self.width}"] * bool(self.width) + [f"norm-{self.norm}"] * bool(self.norm)
        return "_".join([*parts, f"{self.image}px"])

    def settings(self) -> dict[str, object]:
        """The same for a report."""
        return {
            "model": self.model,
            "width": self.width,
            "norm": self.norm,
            "image_shape": list(self.image_shape),
            "classes": self.classes,
            "precision": self.precision,
        }

    def but(self, **changes: object) -> Subject:
        return replace(self, **changes)  # type: ignore[arg-type]

    def build(self) -> nn.Module:
        """The model in training mode on the device."""
        torch.manual_seed(0)
        given = {"width": self.width, "norm": self.norm}
        options = {key: value for key, value in given.items() if value is not None}
        model = models.build(
            self.model,
            num_classes=self.classes,
            image_shape=self.image_shape,
            mean=(0.5,) * self.channels,
            std=(0.25,) * self.channels,
            **options,
        )
        if self.precision == "bf16":  # what autocast leaves in float32, Σ above all, in TF32
            torch.set_float32_matmul_precision("high")
        return model.to(self.device, memory_format=self.memory_format).train()  # type: ignore[call-overload]

    @property
    def memory_format(self) -> torch.memory_format:
        cuda = self.device.type == "cuda"
        return torch.channels_last if cuda else torch.contiguous_format

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        """Images in [0, 1] and labels."""
        if size < 1:
            raise InvalidInput(f"A batch has at least one image, not {size}.")
        generator = torch.Generator().manual_seed(1)
        x = torch.rand(size, *self.image_shape, generator=generator)
        y = torch.randint(self.classes, (size,), generator=generator)
        return x.to(self.device).contiguous(memory_format=self.memory_format), y.to(self.device)

    def autocast(self) -> torch.autocast:
        return torch.autocast(
            self.device.type, torch.bfloat16, enabled=self.precision == "bf16", cache_enabled=False
        )


def subject(
    model: str,
    device: torch.device,
    *,
    width: int | None = None,
    norm: str | None = None,
    image: int | None = None,
) -> Subject:
    """A subject with what the model's usual data set looks like where nothing is given."""
    if image is not None and image < 1:
        raise InvalidInput(f"--image is a number of pixels, not {image}.")
    lenet = model == "lenet"
    image = image or (28 if lenet else 32)
    return Subject(
        model,
        width=width,
        norm=norm,
        image=image,
        channels=1 if lenet else 3,
        classes=1000 if image > LARGE else 10,
        device=device,
    )
