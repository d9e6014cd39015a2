from collections.abc import Callable
from pathlib import Path

import pytest
from certifications import draw_rows, make_run, tsv

from covprop.certify.records import Log
from covprop.certify.rows import Row
from covprop.errors import InvalidInput
from covprop.report.find import logs_under, named_itself, set_aside
from covprop.report.read import read
from covprop.train.folder import move_aside


def garble(log: Path) -> None:
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join([*lines[:4], "garbage\n", *lines[4:]]))


def break_config(log: Path) -> None:
    log.with_name("config.toml").write_text("[data\n")


def break_details(log: Path) -> None:
    log.with_suffix(".json").write_text("{")


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (garble, "line 5: 6 tab-separated fields expected, 1 found; correct or remove that line."),
        (break_config, "not valid TOML"),
        (break_details, "not valid JSON"),
    ],
)
def test_a_damaged_run_among_others_is_left_out(
    tmp_path: Path, damage: Callable[[Path], None], why: str
) -> None:
    for name in ("a", "b", "c"):
        log = make_run(tmp_path / name)
        if name == "b":
            damaged = log
            damage(log)
    certifications, (warning,) = read([tmp_path])
    assert [c.name for c in certifications] == ["a", "c"]
    assert warning.startswith(f"{damaged} was left out: ")
    assert why in warning
    for named in (damaged, damaged.parent):
        with pytest.raises(InvalidInput, match=str(tmp_path / "b")):
            read([tmp_path, named])


def test_nothing_left_is_a_mistake(tmp_path: Path) -> None:
    for name in ("a", "b"):
        garble(make_run(tmp_path / name))
    with pytest.raises(InvalidInput, match=r"a/certify_sigma_0.25.tsv, line 5"):
        read([tmp_path])


def test_of_a_run_certified_twice_the_damaged_log_is_left_out(tmp_path: Path) -> None:
    log = make_run(tmp_path / "a")
    log.with_name("certify_sigma_0.5.tsv").write_text(tsv(draw_rows(2, 0.5)))
    garble(log)
    certifications, warnings = read([tmp_path])
    assert [c.sigma for c in certifications] == [0.5]
    assert len(warnings) == 1
    with pytest.raises(InvalidInput, match="line 5"):
        read([tmp_path / "a"])


def test_a_folder_of_bare_logs_is_a_folder_of_several(tmp_path: Path) -> None:
    for name in ("x.tsv", "y.tsv"):
        (tmp_path / name).write_text(tsv(draw_rows(1, 0.25)))
    garble(tmp_path / "x.tsv")
    assert [c.name for c in read([tmp_path])[0]] == ["y"]


def test_a_broken_recipe_of_a_run_that_is_not_certified_is_told(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "config.toml").write_text("[data\n")
    (found,), (warning,) = read([tmp_path])
    assert found.name == "a"
    assert warning.startswith(f"{tmp_path / 'b'} was left out: {tmp_path / 'b' / 'config.toml'} is")


def test_a_log_is_named_by_itself_or_by_its_run(tmp_path: Path) -> None:
    log = make_run(tmp_path / "runs" / "a")
    assert logs_under(tmp_path) == ([log], [])
    assert named_itself(log, log)
    assert named_itself(log.parent, log)
    assert not named_itself(log.parent.parent, log)


def test_what_was_set_aside_is_left_out_unless_named(tmp_path: Path) -> None:
    log = make_run(tmp_path / "a")
    (tmp_path / "d.old-2b").mkdir()  # a name like any other
    make_run(tmp_path / "d.old-2b" / "b")
    old_run = make_run(tmp_path / "a.old-1", seed=2)
    (tmp_path / "c.old-12").mkdir()
    (tmp_path / "c.old-12" / "config.toml").write_text("")
    old_logs = [log.with_name(f"certify_sigma_0.25.{end}") for end in ("old-1.tsv", "tsv.old-1")]
    for old in old_logs:
        old.write_text(tsv(draw_rows(3, 0.25)))
    certifications, warnings = read([tmp_path])
    assert [c.name for c in certifications] == ["a", "b"]
    assert not warnings
    assert [c.name for c in read([tmp_path, tmp_path / "a.old-1"])[0]] == ["a", "b", "a.old-1"]
    for named in (old_run, *old_logs):
        assert read([named])[0][0].path == named


def test_a_folder_in_one_that_was_set_aside_is_searched(tmp_path: Path) -> None:
    log = make_run(tmp_path / "all.old-1" / "a")
    assert logs_under(tmp_path / "all.old-1") == ([log], [])
    with pytest.raises(InvalidInput, match=rf"but what was set aside; give {log} by name"):
        logs_under(tmp_path)
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "config.toml").write_text("")
    with pytest.raises(InvalidInput, match=r"covprop certify .*again"):
        logs_under(tmp_path)


def test_a_log_that_was_set_aside_has_what_lay_beside_it(tmp_path: Path) -> None:
    log = make_run(tmp_path / "a")
    (before,), _ = read([log])
    old = Log(log, {}, Row).set_aside()
    assert old is not None
    assert set_aside(old)
    (found,), warnings = read([old])
    assert not warnings
    assert (found.name, found.sigma, found.meta, found.samples) == (
        before.name, before.sigma, before.meta, before.samples
    )  # fmt: skip


def test_names_are_those_that_training_gives(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "a")
    aside = [move_aside(make_run(tmp_path / "runs" / "a").parent) for _ in range(11)]
    assert all(place is not None and set_aside(place) for place in aside)
    assert not set_aside(tmp_path / "runs" / "a")
