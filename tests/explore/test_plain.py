import json
import math

import torch

from covprop.explore.plain import MOST_CLASSES, MOST_DOTS, cloud, number, numbers, votes


def test_numbers_fit_into_json() -> None:
    assert [number(v) for v in (math.inf, -math.inf, math.nan)] == ["∞", "−∞", "NaN"]
    assert number(0.123456789) == 0.1234568
    nested = numbers(torch.tensor([[1.0, math.nan], [2.0, 3.0]]))
    assert json.loads(json.dumps(nested, allow_nan=False)) == [[1.0, "NaN"], [2.0, 3.0]]


def test_nan_is_no_class() -> None:
    logits = torch.tensor([[0.0, 1.0], [math.nan, 1.0], [2.0, 1.0], [3.0, 1.0]])
    assert votes(logits) == {"votes": [[0, 2], [1, 1]], "nan": 1}


def test_many_classes_and_many_dots_are_cut() -> None:
    assert len(votes(torch.randn(50, 1000))["votes"]) == MOST_CLASSES
    points = torch.randn(1000, 2)
    points[3] = math.inf
    found = cloud(points)
    assert len(found["dots"]) == MOST_DOTS
    kept = torch.cat([points[:3], points[4:]])
    torch.testing.assert_close(torch.tensor(found["mean"]), kept.mean(0), rtol=1e-3, atol=1e-4)
    assert cloud(points[3:4]) == {"dots": []}
