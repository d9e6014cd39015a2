"""Tables with a row an image, against what csv and pandas are known to write."""

from pathlib import Path

import pytest

from covprop.data.tables import read_rows


@pytest.mark.parametrize("name", ["index", "INDEX", " idx ", "Unnamed: 0", "", "ID"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_rows_come_in_the_order_of_their_numbers(
    tmp_path: Path, name: str, delimiter: str, mark: str
) -> None:
    lines = [[name, "Label"], *([str(i), str(i % 3)] for i in (10, 2, 1, 0, 9, 8, 3, 4, 5, 7, 6))]
    text = mark + "\r\n".join(delimiter.join(line) for line in lines)
    (tmp_path / "a.csv").write_text(text, encoding="utf-8", newline="")
    found = read_rows(tmp_path / "a.csv")
    assert [row["label"] for row in found] == [str(i % 3) for i in range(11)]


def test_without_numbers_the_order_is_the_file_s(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('name,label\n"b, c",1\n\na,0\n')
    assert read_rows(tmp_path / "a.csv") == [
        {"name": "b, c", "label": "1"},
        {"name": "a", "label": "0"},
    ]
    (tmp_path / "a.csv").write_text("")
    assert read_rows(tmp_path / "a.csv") == []


def test_the_named_numbers_go_before_pandas_own(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(",index,label\n0,1,b\n1,0,a\n")
    assert [row["label"] for row in read_rows(tmp_path / "a.csv")] == ["a", "b"]


@pytest.mark.parametrize("ids", ["1 2 3", "7 7 9", "c a b", "2 1 x"])
def test_ids_that_number_nothing_leave_the_order(tmp_path: Path, ids: str) -> None:
    rows = "".join(f"{one},{label}\n" for one, label in zip(ids.split(), "201", strict=True))
    (tmp_path / "a.csv").write_text(f"id,label\n{rows}")
    assert [row["label"] for row in read_rows(tmp_path / "a.csv")] == ["2", "0", "1"]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("index,label\n0,1\n0,1\n", "index must count 0, 1, 2, … once each"),
        ("index,label\n0,1\n2,1\n", "index must count 0, 1, 2, … once each"),
        (",label\n1,1\n2,1\n", r"\(first\) must count"),
        ("id,label\n3,1\n1,1\n2,0\n", "id is not in order and does not count from 0"),
        ("index,label\n0,1\n1\n", "row 2 is too short: 1 values for 2"),
        ("label\n0,1\n", "row 1 is too long: 2 values for 1"),
        ("label,Label\n0,1\n", "more than one column label"),
    ],
)
def test_what_is_no_table_of_images(tmp_path: Path, text: str, what: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(ValueError, match=what):
        read_rows(tmp_path / "a.csv")
