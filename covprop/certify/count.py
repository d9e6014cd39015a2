"""Which class every sample went to, counted for the image it is of."""

from __future__ import annotations

import torch
from torch import Tensor


def add_outcomes(
    logits: Tensor, owner: Tensor, taken: Tensor, counts: Tensor, sums: Tensor | None
) -> None:
    """Add a pass over whole blocks of samples to what was counted of their images.

    logits are [blocks · size, classes]. Of each block, `owner` [blocks] is the image it belongs to
    and `taken` how many of its samples count, the first ones. `counts` [images, classes + 1] gets
    one for every sample, NaN last; `sums` [2, images, classes], for soft certificates, Σp and Σp²
    of the softmax p.

    A CUDA graph can hold it: nothing is read on the host, and no shape depends on a number.
    """
    k, block = logits.shape[1], len(logits) // len(owner)
    outcome = torch.where(logits.isnan().any(1), k, logits.argmax(1))
    row = owner[:, None].expand(-1, block).flatten()
    valid = (torch.arange(block, device=logits.device) < taken[:, None]).flatten()
    counts.view(-1).scatter_add_(0, row * (k + 1) + outcome, valid.long())
    if sums is not None:
        # A NaN row is worth nothing to any class.
        p = logits.double().softmax(1).nan_to_num(0.0) * valid[:, None]
        sums[0].index_add_(0, row, p)
        sums[1].index_add_(0, row, p * p)
