"""A comparison with the package cleanlab, which is installed apart.

The list in a run's suspects.csv has cleanlab's columns: `pandas.read_csv(file, index_col=0)` is a
table of label issues.
"""

from __future__ import annotations

import numpy as np

from covprop.errors import CovpropError, install
from covprop.noisy.rate import Floats, Integers
from covprop.noisy.suspects import Suspects


def require() -> None:
    """Say it before a training of hours, not after, if the package is not there."""
    try:
        import cleanlab.filter  # noqa: F401
    except ImportError as error:
        raise CovpropError(
            f"This needs the package cleanlab; install it with {install('cleanlab')}."
        ) from error


def compare(suspects: Suspects, probability: Floats) -> dict[str, float]:
    """What cleanlab makes of the same labels and predictions, beside this list.

    `rank_correlation` is Spearman's between the two scores, `overlap` the share of labels flagged
    by both among those flagged by either; `precision` and `recall` are cleanlab's, where the truth
    is known.
    """
    require()
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores
    from scipy.stats import spearmanr

    given: Integers = suspects.given
    theirs = np.asarray(find_label_issues(given, probability, n_jobs=1))
    quality = get_label_quality_scores(given, probability)
    either = (theirs | suspects.flagged).sum()
    found = {
        "flagged": float(theirs.sum()),
        "rank_correlation": float(spearmanr(quality, suspects.quality).statistic),
        "overlap": float((theirs & suspects.flagged).sum() / either) if either else 1.0,
    }
    if suspects.clean is not None:
        wrong = given != suspects.clean
        hits = float((wrong & theirs).sum())
        found["precision"] = hits / theirs.sum() if theirs.any() else float("nan")
        found["recall"] = hits / wrong.sum() if wrong.any() else float("nan")
    return found
