"""Batch norms in eval mode as a factor and a shift for every channel.

A compiler turns the layer itself into a square root and a division for every number of the feature
map, which cost more than the memory access.
"""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
Model = TypeVar("Model")


class Affine(nn.BatchNorm2d):
    """γ(x − μ)/√(v + ε) + β as x·factor + offset."""

    factor: Tensor
    offset: Tensor

    def forward(self, x: Tensor) -> Tensor:
        shape = (-1, *(1,) * (x.ndim - 2))
        return (x * self.factor.view(shape) + self.offset.view(shape)).to(x.dtype)


def affine(model: Model) -> Model:
    """A copy of a module with all batch norms in eval mode replaced; a function is returned as is.

    >>> norm = nn.BatchNorm2d(3).eval()
    >>> x = torch.rand(2, 3, 4, 4)
    >>> torch.allclose(affine(norm)(x), norm(x))
    True
    """
    if not isinstance(model, nn.Module):
        return model
    model = copy.deepcopy(model)
    for layer in model.modules():
        if isinstance(layer, NORMS) and type(layer) in NORMS and not layer.training:
            _replace(layer)
    return model


@torch.no_grad()
def _replace(layer: nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d) -> None:
    """Change the class of the layer in place, so that its hooks and attributes stay."""
    mean, var = layer.running_mean, layer.running_var
    if mean is None or var is None:
        return  # it uses the batch's statistics
    factor = (var.double() + layer.eps).rsqrt()
    factor = factor * layer.weight.double() if layer.affine else factor
    offset = -mean.double() * factor
    offset = offset + layer.bias.double() if layer.affine else offset
    kind = torch.promote_types(mean.dtype, torch.float32)
    layer.__class__ = Affine
    layer.register_buffer("factor", factor.to(kind), persistent=False)
    layer.register_buffer("offset", offset.to(kind), persistent=False)
