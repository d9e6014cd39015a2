import pytest
import torch

from covprop.certify import Prediction
from covprop.certify.rows import PredictRow, Row, rows_of


@pytest.mark.parametrize(
    ("radius", "seconds", "text"),
    [
        (0.0, 0.0, "0.0\t1\t0:00:00.000000"),
        (1.2345e-5, 0.9999999, "1.23e-05\t1\t0:00:01.000000"),
        (1.0, 3661.25, "1.0\t1\t1:01:01.250000"),
        (0.5, 100 * 3600, "0.5\t1\t100:00:00.000000"),
    ],
)
def test_radius_and_time(radius: float, seconds: float, text: str) -> None:
    made = Row(0, 1, 1, radius, 1, seconds, 0.9, 1, 1, 0)
    assert made.tsv() == f"0\t1\t1\t{text}"


def test_predictions_have_no_radius() -> None:
    assert PredictRow.HEADER == "idx\tlabel\tpredict\tcorrect\ttime"
    assert PredictRow(3, 1, -1, 0, 0.5, 90, 85, 200, 0).tsv() == "3\t1\t-1\t0\t0:00:00.500000"


def test_rows_of_an_answer() -> None:
    fields = ([2, -1], [90, 50], [9, 49], [100, 100], [0, 1])
    answer = Prediction(*(torch.tensor(values) for values in fields))
    assert rows_of(PredictRow, [4, 8], [2, 1], answer, 0.5) == [
        PredictRow(4, 2, 2, 1, 0.5, 90, 9, 100, 0),
        PredictRow(8, 1, -1, 0, 0.5, 50, 49, 100, 1),
    ]
