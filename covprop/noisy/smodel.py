"""S-model (Goldberger and Ben-Reuven 2017): a layer that learns how labels go wrong."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Annotated

import torch
from torch import Tensor, nn

from covprop.data import Batch
from covprop.noisy.base import NoisyLosses, NoisyMethod, Task, cross_entropy
from covprop.options import Range


class SModel(NoisyMethod):
    """P(given = j) = Σ_i p_i softmax(W_i)_j; at test time the network's own p is used.

    For the first `pretrain` epochs the network learns plainly; W is then the log of how its
    predictions (rows) met the given labels (columns) in the last of these epochs, and learns too.
    """

    transition: Tensor
    met: Tensor

    def __init__(self, task: Task, pretrain: Annotated[int, Range(1)] = 30) -> None:
        super().__init__()
        classes = task.num_classes
        self.pretrain = pretrain
        self.transition = nn.Parameter(torch.zeros(classes, classes))
        self.register_buffer("met", torch.zeros(classes, classes))

    def start_epoch(self, model: nn.Module, epoch: int) -> None:
        if epoch == self.pretrain - 1:
            self.met.zero_()
        if epoch == self.pretrain:
            self.transition.data.copy_(log_confusion(self.met))

    def phase(self, epoch: int) -> Hashable:
        return epoch < self.pretrain

    def forward(
        self, model: nn.Module, batch: Batch, epoch: int, generator: torch.Generator
    ) -> NoisyLosses:
        logits = model(batch.x).float()
        losses = self.losses(logits, batch.y, epoch)
        return NoisyLosses(losses, logits.detach(), torch.ones_like(batch.y, dtype=torch.bool))

    def losses(self, logits: Tensor, y: Tensor, epoch: int) -> Tensor:
        """The loss of each image, [b]: plain at first, then through the layer."""
        if epoch >= self.pretrain:
            return smodel_loss(logits, y, self.transition)
        cells = logits.argmax(1) * logits.shape[1] + y
        self.met.view(-1).index_add_(0, cells, torch.ones_like(logits[:, 0]))
        return cross_entropy(logits, y)


def smodel_loss(logits: Tensor, y: Tensor, transition: Tensor) -> Tensor:
    """−log Σ_i p_i softmax(W_i)_y of each image, [b]."""
    shares = transition.log_softmax(1)
    if torch.compiler.is_compiling() and not y.is_cuda:
        # The gradient of indexing, compiled for several CPU threads, writes beyond its end up to
        # torch 2.13 at least (pytorch/pytorch#191837).
        given = y[:, None, None] == torch.arange(len(shares), device=y.device)
        log_given = torch.where(given, shares, 0.0).sum(2)
    else:
        log_given = shares.T[y]  # [b, true class]
    return -(logits.log_softmax(1) + log_given).logsumexp(1)


def log_confusion(counts: Tensor) -> Tensor:
    """log of the rows' shares, each pair seen once more, so that none is impossible."""
    counts = counts + 1.0
    return (counts / counts.sum(1, keepdim=True)).log()
