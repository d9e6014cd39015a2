"""Logs: the field's format, repair after a cut at any byte, no mixing, several writers."""

import json
import resource
from dataclasses import replace
from pathlib import Path

import pytest

from covprop.certify.records import Log
from covprop.certify.rows import PredictRow, Row
from covprop.errors import CovpropError, InvalidInput
from covprop.report.tsv import read_tsv

SETTINGS = {"sigma": 0.25, "n": 1000, "alpha": 0.001, "mode": "hard", "weights": "ab" * 32}


def row(i: int) -> Row:
    """A row whose every field depends on the image."""
    return Row(
        idx=i,
        label=i % 3,
        predict=-1 if i % 4 == 3 else i % 3,
        radius=0.0 if i % 4 == 3 else 0.123456 * (i + 1),
        correct=int(i % 4 != 3),
        seconds=1.5 + i,
        p_lower=0.4 if i % 4 == 3 else 0.9,
        count=900 + i,
        n=1000,
        nan=0,
    )


def write(path: Path, wanted: list[int], **options: int) -> list[Row] | None:
    with Log(path, SETTINGS, Row, **options) as log:
        for i in wanted[options.get("rank", 0) :: options.get("world", 1)]:
            if i not in log.done:
                log.append(row(i))
        return log.finish(wanted)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "certify_sigma_0.25.tsv"


def names(path: Path) -> list[str]:
    return sorted(p.name for p in path.parent.iterdir())


def test_the_fields_format(path: Path) -> None:
    rows = write(path, [0, 20, 40])
    assert rows == [row(0), row(20), row(40)]
    assert path.read_text() == (
        "idx\tlabel\tpredict\tradius\tcorrect\ttime\n"
        "0\t0\t0\t0.123\t1\t0:00:01.500000\n"
        "20\t2\t2\t2.59\t1\t0:00:21.500000\n"
        "40\t1\t1\t5.06\t1\t0:00:41.500000\n"
    )
    assert names(path) == [
        "certify_sigma_0.25.json",
        "certify_sigma_0.25.rows.jsonl",
        "certify_sigma_0.25.tsv",
    ]
    assert json.loads(path.with_suffix(".json").read_text()) == SETTINGS
    assert read_tsv(path).radius.tolist() == [0.123, 2.59, 5.06]


def test_a_guess_is_not_bounded_if_it_got_no_samples(path: Path) -> None:
    """One whose samples were all of other classes was."""
    settings = {**SETTINGS, "skip_wrong": True}
    with Log(path, settings, Row) as log:
        for i, n in enumerate((1000, 1000, 0)):
            log.append(replace(row(i), count=0 if i else 900, n=n))
        log.finish([0, 1, 2])
    assert json.loads(path.with_suffix(".json").read_text()) == {**settings, "not_bounded": 1}


def test_predictions_are_logged_too(path: Path) -> None:
    with Log(path, SETTINGS, PredictRow) as log:
        log.append(PredictRow(3, 1, 1, 1, 0.5, 90, 5, 100, 0))
        log.finish([3])
    assert path.read_text() == "idx\tlabel\tpredict\tcorrect\ttime\n3\t1\t1\t1\t0:00:00.500000\n"


@pytest.mark.parametrize("which", ["tsv", "rows.jsonl"])
def test_a_file_cut_at_any_byte_is_completed(path: Path, which: str) -> None:
    wanted = [0, 1, 2, 3]
    write(path, wanted)
    cut = path.with_suffix(f".{which}")
    whole = {p: p.read_bytes() for p in path.parent.iterdir()}
    for size in range(0, len(whole[cut]), 1 if which == "tsv" else 7):
        # The journal is written first, so a cut journal comes with a TSV of at most as many rows.
        lines = whole[cut][:size].count(b"\n")
        if which == "rows.jsonl":
            tsv = whole[path].split(b"\n")[: lines + 1]
            path.write_bytes(b"\n".join(tsv) + b"\n")
        cut.write_bytes(whole[cut][:size])
        with Log(path, SETTINGS, Row) as log:
            expected = wanted if which == "tsv" else wanted[:lines]
            assert sorted(log.done) == expected
        assert write(path, wanted) == [row(i) for i in wanted]
        assert {p: p.read_bytes() for p in path.parent.iterdir()} == whole


def test_going_on_neither_repeats_nor_reorders(path: Path) -> None:
    write(path, [4, 6])
    write(path, [0, 2, 4, 6, 8])
    assert [line.split("\t")[0] for line in path.read_text().splitlines()[1:]] == list("02468")
    journal = path.with_suffix(".rows.jsonl").read_text().splitlines()
    assert [json.loads(line)["idx"] for line in journal] == [0, 2, 4, 6, 8]


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        *[("sigma", 0.5, "0.25, not 0.5"), ("n", 10, "1000, not 10"), ("new", 1, "unset, not 1")],
        *[("alpha", 0.01, "0.001, not 0.01"), ("mode", "soft", "hard, not soft")],
        ("weights", "cd" * 32, "abababababab…, not cdcdcdcdcdcd…"),
    ],
)
def test_other_settings_are_refused_and_named(
    path: Path, key: str, value: object, said: str
) -> None:
    write(path, [0, 1])
    before = {p: p.read_bytes() for p in path.parent.iterdir()}
    with pytest.raises(InvalidInput, match=f"{key} = {said},.*do not mix.*--out.*--restart"):
        Log(path, {**SETTINGS, key: value}, Row).__enter__()
    assert {p: p.read_bytes() for p in path.parent.iterdir()} == before


def test_notes_and_what_earlier_versions_did_not_keep_are_no_other_settings(path: Path) -> None:
    write(path, [0])
    with Log(path, {**SETTINGS, "model_code": "ab" * 32, "epochs": 3, "epochs_planned": 9}, Row):
        pass
    assert json.loads(path.with_suffix(".json").read_text()) == SETTINGS
    log = Log(path, {**SETTINGS, "model_code": "ab" * 32, "skip_wrong": None}, Row)
    with log:
        log._write_meta()  # rows from before are of a code that nobody knows
    assert "model_code" not in json.loads(path.with_suffix(".json").read_text())
    with Log(path.with_stem("other"), {**SETTINGS, "model_code": "ab" * 32}, Row):
        pass
    for other in (SETTINGS, {**SETTINGS, "model_code": "cd" * 32}):
        with pytest.raises(InvalidInput, match=r"model_code = abababababab…, not (unset|cdcd)"):
            Log(path.with_stem("other"), other, Row).__enter__()


def test_another_data_set_is_named_in_full(path: Path) -> None:
    """Two paths may begin alike for long."""
    one, two = "/home/me/images/winter/photos.npz", "/home/me/images/summer/photos.npz"
    with Log(path, {**SETTINGS, "data": one}, Row):
        pass
    with pytest.raises(InvalidInput, match=f"data = {one}, not {two}, and rows"):
        Log(path, {**SETTINGS, "data": two}, Row).__enter__()


def test_rows_of_another_run_are_refused(path: Path) -> None:
    write(path, [0, 1])
    text = path.read_text()
    path.write_text(text + "2\t1\t1\t0.5\t1\t0:00:01\n")
    with pytest.raises(InvalidInput, match="holds a row for image 2"):
        write(path, [0, 1])
    path.write_text(text.replace("0.247", "0.999"))
    with pytest.raises(InvalidInput, match="holds a row for image 1"):
        write(path, [0, 1])
    assert "0.999" in path.read_text()


def test_a_log_of_unknown_origin_is_refused(path: Path) -> None:
    path.parent.mkdir()
    text = f"{Row.HEADER}\n0\t1\t1\t0.5\t1\t0:00:01\n"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=r"certify_sigma_0.25.json.*is missing"):
        write(path, [0])
    assert path.read_text() == text


@pytest.mark.parametrize("text", ["something else\n", "something else", "idx\tlabel\n1\t2\n"])
def test_a_file_of_another_kind_is_refused(path: Path, text: str) -> None:
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(InvalidInput):
        write(path, [0])
    assert path.read_text() == text


@pytest.mark.parametrize("world", [1, 2])
def test_what_is_no_place_for_a_log_is_one_sentence(path: Path, world: int) -> None:
    path.mkdir(parents=True)
    with pytest.raises(InvalidInput, match=r"0.25.tsv cannot be read \(Is a directory\)"):
        write(path, [0], world=world)
    (path.parent / "file").write_text("kept")
    with pytest.raises(InvalidInput, match=r"x.tsv cannot be read \(Not a directory\)"):
        write(path.parent / "file" / "x.tsv", [0], world=world)
    assert (path.parent / "file").read_text() == "kept"
    assert names(path) == [path.name, "file"]


def test_damaged_side_files_are_refused(path: Path) -> None:
    write(path, [0, 1])
    journal = path.with_suffix(".rows.jsonl")
    text = journal.read_text()
    journal.write_text("{}\n" + text)
    with pytest.raises(InvalidInput, match="line 1 is not a row"):
        write(path, [0, 1])
    journal.write_text(text)
    path.with_suffix(".json").write_text("{")
    with pytest.raises(InvalidInput, match="is damaged"):
        write(path, [0, 1])


def test_two_processes_on_one_log_are_refused(path: Path) -> None:
    with Log(path, SETTINGS, Row):
        with pytest.raises(InvalidInput, match="another process is certifying"):
            Log(path, SETTINGS, Row).__enter__()
        with pytest.raises(InvalidInput, match="another process is certifying"):
            Log(path, SETTINGS, Row, rank=0, world=2).__enter__()
    with Log(path, SETTINGS, Row, rank=0, world=2), Log(path, SETTINGS, Row, rank=1, world=2):
        with pytest.raises(InvalidInput, match="another process is certifying"):
            Log(path, SETTINGS, Row).__enter__()
        with pytest.raises(InvalidInput, match="another process is certifying"):
            Log(path, SETTINGS, Row, rank=1, world=2).__enter__()


def test_several_processes_leave_what_one_would(path: Path, tmp_path: Path) -> None:
    path, wanted = path.with_stem("net[1]*"), list(range(0, 50, 5))  # no pattern, but a name
    assert write(path, wanted, rank=2, world=3) is None
    assert write(path, wanted, rank=0, world=3) is None
    assert not path.exists()
    assert write(path, wanted, rank=1, world=3) == [row(i) for i in wanted]
    alone = tmp_path / "alone" / path.name
    write(alone, wanted)
    assert names(path) == names(alone)
    assert [p.read_bytes() for p in sorted(path.parent.iterdir())] == [
        p.read_bytes() for p in sorted(alone.parent.iterdir())
    ]


@pytest.mark.parametrize("world", [1, 2, 5])
def test_a_stopped_group_is_taken_over_by_any_number(path: Path, world: int) -> None:
    wanted = list(range(12))
    write(path, wanted, rank=1, world=3)
    part = path.with_suffix(".rank1.rows.jsonl")
    part.write_bytes(part.read_bytes()[:-20])  # killed in the middle of its last row
    for rank in range(world):
        rows = write(path, wanted, rank=rank, world=world)
    assert rows == [row(i) for i in wanted]
    assert len(names(path)) == 3
    assert [line.split("\t")[0] for line in path.read_text().splitlines()[1:]] == [
        str(i) for i in wanted
    ]


def test_a_full_disk_in_the_midst_of_a_row_is_one_sentence_and_the_log_goes_on(
    path: Path,
) -> None:
    """The limit on file sizes fails as a full disk does: after part of a line."""
    wanted = list(range(40))
    expected = [row(i) for i in wanted]
    write(path, wanted[:1])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(CovpropError, match=r"Cannot write .*rows\.jsonl.* free some space"):
            write(path, wanted)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    journal = path.with_suffix(".rows.jsonl").read_bytes()
    assert len(journal) == 1000
    assert not journal.endswith(b"\n")
    assert write(path, wanted) == expected
    assert len(read_tsv(path)) == 40


def test_a_log_is_set_aside_whole_and_never_over_another(path: Path) -> None:
    assert Log(path, SETTINGS, Row).set_aside() is None
    for number in (1, 2):
        write(path, [0, number])
        whole = {p.name: p.read_bytes() for p in path.parent.iterdir() if "old" not in p.name}
        with Log(path, SETTINGS, Row), pytest.raises(InvalidInput, match="another process is"):
            Log(path, SETTINGS, Row).set_aside()
        other = Log(path, {**SETTINGS, "n": 5}, Row)
        assert other.set_aside() == path.with_name(f"{path.name}.old-{number}")
        assert not path.exists()
        assert {n: path.with_name(f"{n}.old-{number}").read_bytes() for n in whole} == whole
        with other:
            assert other.done == {}
        other.set_aside()
        for left in path.parent.glob(f"*.old-{number + 1}"):
            left.unlink()


def test_what_is_no_log_is_not_set_aside(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("name\tprice\n")
    path.with_suffix(".json").write_text("{}")
    with pytest.raises(InvalidInput, match="is not a certification log"):
        Log(path, SETTINGS, Row).set_aside()
    path.unlink()
    path.with_suffix(".json").write_text('{"accuracy": 0.9}')  # as covprop noisy has it
    with pytest.raises(InvalidInput, match=r"where the settings .* holds something else"):
        Log(path, SETTINGS, Row).set_aside()
    with pytest.raises(InvalidInput, match="holds something else"), Log(path, SETTINGS, Row):
        pass
    assert path.with_suffix(".json").read_text() == '{"accuracy": 0.9}'
