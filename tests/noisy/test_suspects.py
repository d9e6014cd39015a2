"""The ranked list: its scores by hand and against scikit-learn, its file, its pictures."""

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from PIL import Image
from sklearn.metrics import average_precision_score, precision_score, recall_score

from covprop.errors import InvalidInput
from covprop.noisy.suspects import Suspects, find, picture_grid, read_csv, to_csv


def example(count: int = 60, radius: bool = False) -> Suspects:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(4), count)
    clean = p.argmax(1)
    given = np.where(rng.random(count) < 0.3, (clean + 1) % 4, clean)
    return find(given, p, 0.25, radius=rng.normal(size=count) if radius else None, clean=clean)


def test_scores_against_scikit_learn() -> None:
    found = example()
    assert found.clean is not None
    wrong, scores = found.given != found.clean, found.scores()
    assert scores is not None
    assert scores["precision"] == pytest.approx(precision_score(wrong, found.flagged))
    assert scores["recall"] == pytest.approx(recall_score(wrong, found.flagged))
    by_sklearn = average_precision_score(wrong, -found.quality)
    assert scores["average_precision"] == pytest.approx(by_sklearn)
    assert found.flagged.sum() == 15
    assert set(found.order[:15]) == set(np.flatnonzero(found.flagged))


def test_scores_without_truth_or_without_wrong_labels() -> None:
    p, given = np.array([[0.9, 0.1], [0.4, 0.6]]), np.array([0, 1])
    assert find(given, p, 0.0).scores() is None
    scores = find(given, p, 0.0, clean=given).scores()
    assert scores is not None
    assert all(np.isnan(list(scores.values())))


@pytest.mark.parametrize("radius", [True, False])
def test_the_file_is_read_back(tmp_path: Path, radius: bool) -> None:
    found = example(radius=radius)
    path = tmp_path / "suspects.csv"
    path.write_text(to_csv(found))
    lines = path.read_text().splitlines()
    assert lines[0].startswith("index,is_label_issue,label_quality,given_label,predicted_label")
    assert int(lines[1].split(",")[0]) == found.quality.argmin()
    again = read_csv(path)
    for name in ("quality", "given", "predicted", "flagged", "clean", "radius"):
        one, two = getattr(found, name), getattr(again, name)
        assert (one is None) == (two is None), name
        assert one is None or np.array_equal(one, two), name


def test_files_are_named_where_there_are_some(tmp_path: Path) -> None:
    found = example(count=3)
    (tmp_path / "a.csv").write_text(to_csv(found, ["a/0.png", "b/1, 2.png", "b/3.png"]))
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    named = {int(row["index"]): row["file"] for row in rows}
    assert named == {0: "a/0.png", 1: "b/1, 2.png", 2: "b/3.png"}
    assert np.array_equal(read_csv(tmp_path / "a.csv").quality, found.quality)


@pytest.mark.parametrize(
    ("mark", "before"),
    [
        ("\ufeff", "index"),  # saved by Excel
        ("\ufeff", ""),  # a table of pandas, saved by Excel
        ("", "Index"),
        ("", "Unnamed: 0"),  # read by pandas as it was and saved without its own numbers
        ("", ",Unnamed: 0"),  # and with them, which only count the lines
    ],
)
def test_images_stay_in_order_whatever_program_saved_the_list(
    tmp_path: Path, mark: str, before: str
) -> None:
    found = example(count=12)
    head, *lines = to_csv(found).splitlines()
    if before.startswith(","):
        lines = [f"{number},{line}" for number, line in enumerate(lines)]
    text = "\n".join([mark + head.replace("index", before, 1), *lines, ""])
    (tmp_path / "a.csv").write_text(text, encoding="utf-8")
    again = read_csv(tmp_path / "a.csv")
    assert np.array_equal(again.quality, found.quality)
    assert np.array_equal(again.given, found.given)


def test_cleanlab_s_own_files_are_read(tmp_path: Path) -> None:
    """As DataFrame.to_csv writes the tables of CleanLearning and of Datalab."""
    path = tmp_path / "issues.csv"
    for score in ("label_quality", "label_score"):
        path.write_text(
            f",is_label_issue,{score},given_label,predicted_label\n0,False,0.9,1,1\n1,True,0.1,0,1\n"
        )
        found = read_csv(path)
        assert found.order.tolist() == [1, 0]
        assert found.flagged.tolist() == [False, True]
        assert found.clean is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "index,label_quality\n0,0.5\n",
        "is_label_issue,label_quality,given_label\nmaybe,1,2\n",
        "is_label_issue,label_quality,given_label,predicted_label\nTrue,nan,1,2\n",
        "is_label_issue,label_quality,given_label,predicted_label\nTrue,0.1,1e99,2\n",
        f"is_label_issue,label_quality,given_label,predicted_label\nTrue,0.1,{10**20},2\n",
        "is_label_issue,label_quality,given_label,predicted_label\n0,True,0.1,1,2\n",
    ],
)
def test_files_that_are_no_list(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(InvalidInput, match="no list of suspect labels"):
        read_csv(tmp_path / "a.csv")
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_csv(tmp_path / "absent.csv")
    (tmp_path / "a.csv").write_text(f"{text}\n{'1' * 200_000}")
    with pytest.raises(InvalidInput, match=r"cannot be read: field larger"):
        read_csv(tmp_path / "a.csv")


@pytest.mark.parametrize("channels", [1, 3])
def test_the_pictures_are_those_of_the_suspects(channels: int) -> None:
    """A dark picture, then a light one: the grid shows them in that order."""
    found = example()
    images = [np.full((8, 8, channels), v, np.uint8) for v in (0, 255, 0)]
    if channels == 1:  # grey pictures are stretched to their own range
        images = [i + np.eye(8, dtype=np.uint8)[:, :, None] * 9 for i in images[:1]] * 3
    png = Image.open(io.BytesIO(picture_grid(found, images, "abcd", columns=2)))
    assert png.format == "PNG"
    assert png.size == (300, 390)
    if channels == 3:
        pixels = np.asarray(png.convert("L")).astype(int)
        assert pixels[130, 75] == 0
        assert pixels[130, 225] == 255
        assert pixels[325, 75] == 0


def test_titles_say_given_and_predicted_and_who_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    titles: list[str] = []
    monkeypatch.setattr(Axes, "set_title", lambda self, label, **_: titles.append(label))
    found = find(np.array([0, 1]), np.array([[0.2, 0.8], [0.1, 0.9]]), 0.5, clean=np.array([1, 1]))
    picture_grid(found, [np.zeros((8, 8, 1), np.uint8)] * 2, ["cat", "dog"])
    assert titles == ["#0  0.20\ncat → dog ✗", "#1  0.90\ndog → dog ✓"]


def test_the_share_of_flags_is_rounded() -> None:
    p = np.full((100, 2), 0.5)
    assert find(np.zeros(100, np.int64), p, 0.29).flagged.sum() == 29  # 0.29 · 100 < 29


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"rate": -0.1}, "rate must be at least 0 and at most 1, not -0.1"),
        ({"rate": 1.1}, "rate must be at least 0 and at most 1, not 1.1"),
        ({"rate": np.nan}, "rate must be a number"),
        ({"probability": np.full((2, 2), np.nan)}, "row 0 of the probabilities"),
        ({"probability": np.eye(3)}, "do not belong together"),
        ({"radius": np.ones(3)}, r"radius has shape \[3\] for 2 images; give one value an image"),
        ({"clean": np.array([1])}, r"clean has shape \[1\] for 2 images"),
    ],
)
def test_what_does_not_fit_is_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    given = {"given": np.array([0, 1]), "probability": np.eye(2), "rate": 0.5}
    with pytest.raises(InvalidInput, match=sentence):
        find(**(given | changes))


def test_names_with_dollars_are_no_formulas() -> None:
    dark = np.zeros((8, 8, 1), np.uint8)
    assert picture_grid(example(), [dark], [r"$\x", "b$_", "c$^", "d$"]).startswith(b"\x89PNG")


def test_names_that_the_font_lacks_are_drawn_without_a_warning() -> None:
    dark = np.zeros((2, 2, 1), np.uint8)
    assert picture_grid(example(), [dark], ["漢", "字", "\t", "d"]).startswith(b"\x89PNG")
