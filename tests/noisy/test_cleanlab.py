"""Side by side with the package cleanlab, where it is installed."""

import numpy as np
import pytest

from covprop.errors import CovpropError
from covprop.noisy import cleanlab as bridge
from covprop.noisy.rate import confident_joint
from covprop.noisy.suspects import Suspects, find

try:
    import cleanlab.count
    import cleanlab.filter
    import cleanlab.rank
    import pandas
except ImportError:
    pandas = None
needs_cleanlab = pytest.mark.skipif(pandas is None, reason="needs the extra cleanlab")


def example() -> tuple[Suspects, np.ndarray]:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 5, 500)
    given = np.where(rng.random(500) < 0.2, (truth + 1) % 5, truth)
    logits = rng.normal(size=(500, 5))
    logits[np.arange(500), truth] += 3
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return find(given, p, 0.2, clean=truth), p


@needs_cleanlab
def test_the_same_scores_and_the_same_joint() -> None:
    found, p = example()
    np.testing.assert_allclose(
        found.quality, cleanlab.rank.get_label_quality_scores(found.given, p)
    )
    theirs = cleanlab.count.compute_confident_joint(found.given, p, calibrate=False)
    # cleanlab puts at least one right label into every class; there are many here.
    assert np.array_equal(confident_joint(found.given, p)[:, :-1], theirs)


@needs_cleanlab
def test_the_comparison_is_cleanlab_s_own_result() -> None:
    found, p = example()
    compared = bridge.compare(found, p)
    theirs = cleanlab.filter.find_label_issues(found.given, p, n_jobs=1)
    wrong = found.given != found.clean
    assert compared["flagged"] == theirs.sum()
    assert compared["rank_correlation"] == pytest.approx(1)
    assert compared["precision"] == pytest.approx((theirs & wrong).sum() / theirs.sum())
    assert 0.5 < compared["overlap"] <= 1


@pytest.mark.skipif(pandas is not None, reason="cleanlab is installed")
def test_without_cleanlab_it_says_what_to_install() -> None:
    found, p = example()
    with pytest.raises(CovpropError, match=r"pip install '\.\[cleanlab\]' in the folder"):
        bridge.compare(found, p)
