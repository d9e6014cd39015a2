"""Outcomes against a loop over samples."""

import pytest
import torch

from covprop.certify.count import add_outcomes

IMAGES, CLASSES, BLOCK = 4, 3, 5
OWNER, TAKEN = [2, 0, 2, 3, 0], [5, 3, 1, 0, 5]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("soft", [False, True])
def test_every_sample_that_counts_is_one_of_its_image(soft: bool, compiled: bool) -> None:
    """Twice, since a pass adds to what is there; what a compiler takes whole, a graph can hold."""
    add = torch.compile(add_outcomes, backend="eager", fullgraph=True) if compiled else add_outcomes
    counts = torch.zeros(IMAGES, CLASSES + 1, dtype=torch.int64)
    sums = torch.zeros(2, IMAGES, CLASSES, dtype=torch.float64)
    expected, total = counts.tolist(), sums.clone()
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        logits = torch.randn(len(OWNER) * BLOCK, CLASSES, generator=generator)
        logits[1, 2] = logits[7, 0] = logits[13, 1] = torch.nan  # the last of them does not count
        for i, row in enumerate(logits):
            block, number = divmod(i, BLOCK)
            image = OWNER[block]
            if number >= TAKEN[block]:
                continue
            if row.isnan().any():
                expected[image][CLASSES] += 1
                continue
            expected[image][int(row.argmax())] += 1
            p = row.double().exp() / row.double().exp().sum()
            total[0, image] += p
            total[1, image] += p**2
        given = torch.tensor(OWNER), torch.tensor(TAKEN)
        add(logits, *given, counts, sums if soft else None)
    assert counts.tolist() == expected
    assert counts.sum() == 2 * sum(TAKEN)
    torch.testing.assert_close(sums, total if soft else torch.zeros_like(sums))
