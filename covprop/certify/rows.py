"""What a log says of one image."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar


@dataclass(frozen=True)
class Row:
    """One image's certificate, in full precision."""

    HEADER: ClassVar[str] = "idx\tlabel\tpredict\tradius\tcorrect\ttime"

    idx: int
    label: int
    predict: int
    radius: float
    correct: int
    seconds: float
    p_lower: float
    count: int
    n: int
    nan: int

    def tsv(self) -> str:
        """The line other tools read: radius with 3 significant digits, time as H:MM:SS.ffffff.

        The radius is rounded to the nearest, as in the field's own logs, so it may be above the one
        that is certified, which the journal has.
        """
        return (
            f"{self.idx}\t{self.label}\t{self.predict}\t{self.radius:.3}\t{self.correct}\t"
            f"{_clock(self.seconds)}"
        )


@dataclass(frozen=True)
class PredictRow:
    """One image's prediction with the counts behind it."""

    HEADER: ClassVar[str] = "idx\tlabel\tpredict\tcorrect\ttime"

    idx: int
    label: int
    predict: int
    correct: int
    seconds: float
    count: int
    runner_up: int
    n: int
    nan: int

    def tsv(self) -> str:
        """The line other tools read."""
        return f"{self.idx}\t{self.label}\t{self.predict}\t{self.correct}\t{_clock(self.seconds)}"


AnyRow = TypeVar("AnyRow", bound=Row | PredictRow)
OWN = ("idx", "label", "predict", "correct", "seconds")


def rows_of(
    kind: type[AnyRow], index: Sequence[int], labels: Sequence[int], answer: Any, seconds: float
) -> list[AnyRow]:
    """The rows of an answer, a Certificate or a Prediction; all but `OWN` are fields of it too."""
    shared = [field.name for field in fields(kind) if field.name not in OWN]
    rows = []
    for k, (idx, label) in enumerate(zip(index, labels, strict=True)):
        predict = int(answer.prediction[k])
        more = {name: getattr(answer, name)[k].item() for name in shared}
        rows.append(
            kind(idx, label, predict, correct=int(predict == label), seconds=seconds, **more)
        )
    return rows


def _clock(seconds: float) -> str:
    whole, part = divmod(round(seconds * 1e6), 1_000_000)
    minutes, second = divmod(whole, 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{second:02d}.{part:06d}"
