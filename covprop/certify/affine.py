"""Batch norms as what they are in eval mode: a factor and a shift for every channel.

A compiler that meets the layer itself takes a square root and a quotient for every number of the
feature map, and its kernels are then bound by arithmetic instead of memory.
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
    """A copy of a module with every batch norm that is in eval mode replaced; else what is given.

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
    """Make it the same layer of another kind: its hooks and what else a model asks of it stay."""
    mean, var = layer.running_mean, layer.running_var
    if mean is None or var is None:
        return  # it takes its statistics from the batch
    factor = (var.double() + layer.eps).rsqrt()
    factor = factor * layer.weight.double() if layer.affine else factor
    offset = -mean.double() * factor
    offset = offset + layer.bias.double() if layer.affine else offset
    kind = torch.promote_types(mean.dtype, torch.float32)
    layer.__class__ = Affine
    layer.register_buffer("factor", factor.to(kind), persistent=False)
    layer.register_buffer("offset", offset.to(kind), persistent=False)
