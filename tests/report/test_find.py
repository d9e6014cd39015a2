from collections.abc import Callable
from pathlib import Path

import pytest
from certifications import draw_rows, make_run, tsv

from covprop.errors import InvalidInput
from covprop.report.find import logs_under, named_itself
from covprop.report.read import read


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
