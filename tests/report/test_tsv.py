from pathlib import Path

import pytest
from certifications import HEADER, ROWS, draw_rows, plain, tsv

from covprop.errors import InvalidInput
from covprop.report.tsv import has_header, parse_seconds, read_tsv


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("15.4", 15.4), ("0:00:15.400000", 15.4), ("1:02:03.5", 3723.5), ("0:00:15", 15), ("7", 7)],
)
def test_both_time_formats(text: str, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "1:2:3", "0:00:", "0:00", "abc"])
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_seconds(text)


def test_rows_are_read_as_written_in_either_time_format(tmp_path: Path) -> None:
    rows = draw_rows(1, 0.25)
    clocked, plainly = tmp_path / "a.tsv", tmp_path / "b.tsv"
    clocked.write_text(tsv(rows))
    plainly.write_text(tsv(rows, plain))
    one, two = read_tsv(clocked), read_tsv(plainly)
    assert len(one) == len(two) == ROWS
    for read in (one, two):
        assert read.idx.tolist() == [r["idx"] for r in rows]
        assert read.predict.tolist() == [r["predict"] for r in rows]
        assert read.correct.tolist() == [bool(r["correct"]) for r in rows]
        assert read.abstained.tolist() == [r["predict"] == -1 for r in rows]
        assert read.radius == pytest.approx([r["radius"] for r in rows], rel=5e-3)
        assert read.radius[3] == 1.23e-05
    assert one.seconds == pytest.approx([r["seconds"] for r in rows], abs=1e-6)
    assert two.seconds == pytest.approx([r["seconds"] for r in rows], rel=5e-3)


def test_windows_line_ends_and_blank_lines_do_no_harm(tmp_path: Path) -> None:
    log = tmp_path / "log.tsv"
    log.write_bytes((tsv(draw_rows(1, 0.25)) + "\n").replace("\n", "\r\n").encode())
    assert len(read_tsv(log)) == ROWS


@pytest.mark.parametrize("cut", range(1, 31))
def test_a_cut_last_line_is_left_out_with_a_warning(tmp_path: Path, cut: int) -> None:
    text = tsv(draw_rows(1, 0.25))
    log = tmp_path / "log.tsv"
    log.write_text(text[:-cut])
    rows = read_tsv(log)
    last = text[:-cut].splitlines()[-1].split("\t")
    if len(rows) == ROWS:  # all that can be missing is the end of the time
        assert len(last) == 6
        assert not rows.warnings
    else:
        complete = text[:-cut].endswith("\n")
        assert len(rows) == ROWS - 1
        assert complete or (len(rows.warnings) == 1 and "cut off" in rows.warnings[0])


def faults() -> dict[str, tuple[str, str]]:
    row = "0\t3\t3\t0.378\t1\t15.4\n"
    return {
        "empty": ("", "is empty"),
        "blank": ("\n\n", "is empty"),
        "header only": (HEADER, "no complete row"),
        "only a cut row": (HEADER + "0\t3", "no complete row"),
        "wrong header": ("idx\tlabel\tpredict\n" + row, "first line must hold"),
        "duplicate": (
            HEADER + row + row.replace("3\t3", "4\t4"),
            "image 0 twice, in lines 2 and 3",
        ),
        "cut in the middle": (HEADER + "0\t3\t3\n" + row, "line 2: 6 tab-separated fields"),
        "no number": (HEADER + row.replace("0.378", "x"), "line 2: not a number"),
        "negative": (HEADER + row.replace("0.378", "-0.1"), "radius must be finite"),
        "infinite": (HEADER + row.replace("0.378", "inf"), "radius must be finite"),
        "no time": (HEADER + row.replace("15.4", "nan"), "time must be finite, not nan"),
        "endless": (HEADER + row.replace("15.4", "inf"), "time must be finite, not inf"),
        "not 0 or 1": (HEADER + row.replace("\t1\t", "\t2\t"), "correct must be 0 or 1"),
        "abstains yet certifies": (HEADER + row.replace("3\t3", "3\t-1"), "abstention"),
        "correct, not its label": (
            HEADER + row.replace("3\t3", "3\t4"),
            "correct is 1 where predict",
        ),
        "its label, not correct": (
            HEADER + row.replace("\t1\t", "\t0\t"),
            "correct is 0 where predict",
        ),
    }


@pytest.mark.parametrize("name", faults())
def test_faults_are_one_sentence_that_names_the_file(tmp_path: Path, name: str) -> None:
    text, expected = faults()[name]
    log = tmp_path / "log.tsv"
    log.write_text(text)
    with pytest.raises(InvalidInput, match=expected) as caught:
        read_tsv(log)
    message = str(caught.value)
    assert str(log) in message
    assert "\n" not in message
    assert message.endswith(".")


def test_files_that_are_no_text_or_not_there(tmp_path: Path) -> None:
    binary = tmp_path / "image.png"
    binary.write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(InvalidInput, match="not a text file"):
        read_tsv(binary)
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_tsv(tmp_path / "absent.tsv")
    assert not has_header(binary)
    assert not has_header(tmp_path / "absent.tsv")


def test_a_number_beyond_any_image_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "log.tsv"
    log.write_text(f"{HEADER}{10**25}\t1\t1\t0.5\t1\t0:00:01\n")
    with pytest.raises(InvalidInput, match="line 2: idx, label or predict is too large"):
        read_tsv(log)


def test_a_radius_beyond_the_most_is_refused_by_line(tmp_path: Path) -> None:
    log = tmp_path / "log.tsv"
    log.write_text(f"{HEADER}0\t1\t1\t0.85\t1\t2\n1\t1\t1\t9.5\t1\t2\n")
    assert len(read_tsv(log)) == 2
    with pytest.raises(
        InvalidInput, match=r"line 3: radius 9\.5 is above 0\.848, the most .*; corr"
    ):
        read_tsv(log, most=0.848)  # which 0.85 may have been before it was rounded
    with pytest.raises(InvalidInput, match="line 2: radius"):
        read_tsv(log, most=0.84)
