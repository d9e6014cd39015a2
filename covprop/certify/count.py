"""Count, for each image, which classes its samples went to."""

from __future__ import annotations

import torch
from torch import Tensor


def add_outcomes(
    logits: Tensor, owner: Tensor, taken: Tensor, counts: Tensor, sums: Tensor | None
) -> None:
    """Add the outcomes of a pass over whole blocks of samples to their images' counts.

    logits are [blocks · size, classes]. `owner` [blocks] is the image of each block, and `taken`
    the number of its samples that count, from the first. `counts` [images, classes + 1] grows by
    one for every sample, NaN last; `sums` [2, images, classes], for soft certificates, by Σp and
    Σp² of the softmax p.

    A CUDA graph can record it: the host reads nothing, and no shape depends on a value.
    """
    k, block = logits.shape[1], len(logits) // len(owner)
    outcome = torch.where(logits.isnan().any(1), k, logits.argmax(1))
    row = owner[:, None].expand(-1, block).flatten()
    valid = (torch.arange(block, device=logits.device) < taken[:, None]).flatten()
    counts.view(-1).scatter_add_(0, row * (k + 1) + outcome, valid.long())
    if sums is not None:
        # A NaN row adds nothing to any class.
        p = logits.double().softmax(1).nan_to_num(0.0) * valid[:, None]
        sums[0].index_add_(0, row, p)
        sums[1].index_add_(0, row, p * p)
