"""The input layer: pixels in [0, 1] become zero-mean, unit-variance features."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from covprop.errors import InvalidInput


class Normalize(nn.Module):
    """(x − mean) / std, channel by channel, as the first layer of the model.

    As part of the model it cannot be forgotten or applied twice, and σ stays on the pixel scale
    for training, propagation and certification alike: the layer divides the noise by std.
    Both constants are buffers, so they travel with the weights in state_dict.

    Example:
        >>> layer = Normalize(mean=(0.5,), std=(0.25,))
        >>> layer(torch.ones(1, 1, 2, 2)).unique()
        tensor([2.])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        if isinstance(mean, int | float) or isinstance(std, int | float):
            raise InvalidInput(
                "Normalize has a mean and a standard deviation for every channel: for one channel "
                "give mean=(0.5,), std=(0.25,)."
            )
        if len(mean) != len(std) or not len(mean):
            raise InvalidInput(
                f"Normalize got {len(mean)} means and {len(std)} standard deviations; "
                "give one of each per channel."
            )
        if not all(0 < s < float("inf") for s in std):
            raise InvalidInput(
                f"Normalize needs standard deviations above 0, but std is {tuple(std)}."
            )
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).view(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std

    def extra_repr(self) -> str:
        mean = [round(v, 4) for v in self.mean.flatten().tolist()]
        std = [round(v, 4) for v in self.std.flatten().tolist()]
        return f"mean={mean}, std={std}"
