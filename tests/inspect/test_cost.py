"""Costs: the paper's figures where they are right, formulas against counting."""

import itertools

import numpy as np
import pytest

from covprop.inspect import cost


def test_the_papers_memory_table_from_the_models_shapes() -> None:
    rows = cost.paper_memory()
    assert [row.name for row in rows] == list(cost.PAPER_MEMORY)
    wrong = []
    for row in rows:
        plain, brute, ours = cost.PAPER_MEMORY[row.name]
        assert row.plain == plain
        assert row.ours == ours
        if row.brute != brute:
            wrong.append(row.name)
        assert (cost.verdict(row) == "as printed") == (row.brute == brute)
    assert wrong == ["1st convolution", "1st residual stage"]
    # What the two remarks say about the printed values.
    first = next(r for r in rows if r.name == "1st convolution")
    stage = next(r for r in rows if r.name == "1st residual stage")
    assert cost.PAPER_MEMORY["1st convolution"][1] == first.plain**2 == 2 * first.brute
    assert cost.PAPER_MEMORY["1st residual stage"][1] == first.brute == 16 * stage.brute


@pytest.mark.parametrize("kernel", [2, 3, 4])
@pytest.mark.parametrize("overlap", [True, False])
def test_formulas_agree_with_the_count(kernel: int, overlap: bool) -> None:
    stride = 1 if overlap else kernel
    for terms in cost.count_terms(kernel, stride, 4):
        assert (terms.covariances, terms.cross) == cost.formula(kernel, stride, terms.back)
        assert terms.paper_cross == terms.cross + terms.covariances


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 3), (2, 1), (2, 2)])
def test_terms_that_are_not_zero_by_matrices(kernel: int, stride: int) -> None:
    """White noise through 1-D convolutions with positive weights, as matrices."""
    depth = 4
    counted = cost.count_terms(kernel, stride, depth)
    size = 1
    for _ in range(depth):
        size = stride * (size - 1) + kernel
    cov = np.eye(size)
    for back in range(depth, -1, -1):
        # Every pixel of the layer contributes to the last one.
        found = sum(cov[m, n] != 0 for m, n in itertools.combinations(range(len(cov)), 2))
        needed = counted[back].nonzero
        assert len(cov) == counted[back].covariances
        assert found == needed
        width = (len(cov) - kernel) // stride + 1
        if back:
            layer = np.zeros((width, len(cov)))
            for m in range(width):
                layer[m, stride * m : stride * m + kernel] = 1.0
            cov = layer @ cov @ layer.T
    assert cov.shape == (1, 1)


def test_exhibits() -> None:
    shown = cost.terms_exhibit(3, 3)
    assert [row[4] for row in shown.rows] == [row[5] for row in shown.rows]
    memory = cost.memory_exhibit([cost.memory_of("input", (3, 8, 8))], False)
    assert memory.rows[0] == ("input", "8×8×3", 192, 18432, 201)
