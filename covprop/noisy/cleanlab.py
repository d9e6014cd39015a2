"""To and from the package cleanlab (`pip install "covprop[cleanlab]"`), and a comparison with it.

The list in a run's suspects.csv has cleanlab's columns already: `pandas.read_csv(file,
index_col=0)` is a table of label issues. These functions are for use within one program.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from covprop.errors import CovpropError
from covprop.noisy.rate import Floats, Integers
from covprop.noisy.suspects import COLUMNS, Suspects, from_rows


def issues(suspects: Suspects) -> Any:
    """A pandas DataFrame like that of cleanlab's `CleanLearning.get_label_issues()`."""
    pandas = _package("pandas")
    columns = (suspects.flagged, suspects.quality, suspects.given, suspects.predicted)
    return pandas.DataFrame(dict(zip(COLUMNS, columns, strict=True)))


def from_issues(frame: Any) -> Suspects:
    """A list from such a table; `label_score`, as cleanlab's Datalab calls it, is read too."""
    rows = frame.rename_axis("index").reset_index().astype(str).to_dict("records")
    return from_rows(rows)


def compare(suspects: Suspects, probability: Floats) -> dict[str, float]:
    """What cleanlab makes of the same labels and predictions, beside this list.

    `rank_correlation` is Spearman's between the two scores, `overlap` the share of labels flagged
    by both among those flagged by either; `precision` and `recall` are cleanlab's, where the truth
    is known.
    """
    from scipy.stats import spearmanr

    _package("cleanlab")
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores

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


def _package(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise CovpropError(
            f'This needs the package {name}; install it with pip install "covprop[cleanlab]".'
        ) from error
