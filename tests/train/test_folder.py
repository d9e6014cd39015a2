"""A run folder is claimed, continued or refused, and nothing in it is lost."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import run_python

from covprop.errors import CovpropError, InvalidInput
from covprop.train import Recipe, folder

Make = Callable[..., Recipe]
CONFIG = {"noise": {"sigma": 0.25}, "train": {"epochs": 3, "device": "cpu"}}


def test_the_same_config_may_come_again(tmp_path: Path) -> None:
    folder.claim(tmp_path, CONFIG)
    folder.claim(tmp_path, CONFIG)
    folder.claim(tmp_path, CONFIG | {"train": {"epochs": 3, "device": "cuda"}})
    assert folder.read_config(tmp_path / "config.toml") == CONFIG


def test_what_changes_the_result_may_not_change(tiny: Make) -> None:
    """Of every key that a config holds: all but these few are part of what the run is."""
    config = tiny(weighting={"name": "radius"}).as_dict()
    free = set()
    for section, values in config.items():
        for key in values:
            other = config | {section: values | {key: "another"}}
            found = folder.difference(config, other)
            assert found in (None, (section, key))
            free |= {f"{section}.{key}"} if found is None else set()
    speed = {"data.workers", "train.compile", "train.device", "train.fast"}
    assert free == speed | {"train.checkpoint_minutes", "train.tensorboard"}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"noise": {"sigma": 0.5}, "train": CONFIG["train"]}, r"noise\.sigma is 0\.25, and now"),
        ({"noise": CONFIG["noise"], "train": {"device": "cpu"}}, r"train\.epochs is 3.* unset"),
        (CONFIG | {"weighting": {"name": "radius"}}, r"weighting\.name is unset"),
    ],
)
def test_a_different_config_is_refused_by_key(
    tmp_path: Path, other: dict[str, dict[str, object]], message: str
) -> None:
    folder.claim(tmp_path, CONFIG)
    before = (tmp_path / "config.toml").read_bytes()
    with pytest.raises(InvalidInput, match=message):
        folder.claim(tmp_path, other)
    assert (tmp_path / "config.toml").read_bytes() == before


def test_a_run_from_before_an_option_existed_goes_on(tmp_path: Path, tiny: Make) -> None:
    config, path = tiny("consistency").as_dict(), tmp_path / "config.toml"
    folder.claim(tmp_path, config)
    before = path.read_text().replace("from_epoch = 0\n", "")
    assert before != path.read_text()
    path.write_text(before)
    folder.claim(tmp_path, config)
    assert path.read_text() == before
    late = tiny({"name": "consistency", "from_epoch": 1}).as_dict()
    with pytest.raises(InvalidInput, match=r"method\.from_epoch is 0, and now it is 1"):
        folder.claim(tmp_path, late)


def test_an_own_models_code_may_not_change_under_a_run(tmp_path: Path) -> None:
    net, out = tmp_path / "net.py", tmp_path / "run"
    net.write_text("one")
    config = CONFIG | {"model": {"name": f"{net}:build"}}
    folder.make(out)
    folder.claim(out, config)
    assert folder.trained_code(out) == hashlib.sha256(b"one").hexdigest()
    net.write_text("two")
    folder.claim(out, config)  # nothing is trained yet
    assert folder.trained_code(out) == hashlib.sha256(b"two").hexdigest()
    (out / "state.pt").touch()
    folder.claim(out, config)
    net.write_text("three")
    with pytest.raises(InvalidInput, match=r"net\.py, .* changed .* old code back, .*--restart"):
        folder.claim(out, config)
    (out / "model.sha256").unlink()  # as in a run of an earlier version
    folder.claim(out, config)
    assert folder.trained_code(out) is None


def test_a_run_in_training_is_not_moved_aside(tmp_path: Path) -> None:
    out = tmp_path / "run"
    folder.make(out)
    folder.claim(out, CONFIG)
    code = "from covprop.train import folder; print(folder.move_aside(path))"
    with folder.locked(out):
        held = run_python(code, out)
    assert "Another process is training into" in held.stderr
    assert (out / "config.toml").exists()
    assert run_python(code, out).stdout.strip() == str(tmp_path / "run.old-1")


def test_what_a_killed_trainer_left_half_written_is_removed_by_the_next(tmp_path: Path) -> None:
    code = (
        "import os, signal; from covprop.train import checkpoint\n"
        "os.replace = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)\n"
        "checkpoint.save_state(path / 'state.pt', {'model': {}})\n"
    )
    run_python(code, tmp_path)
    (half,) = tmp_path.iterdir()
    (tmp_path / ".certify_sigma_0.25.json.0.tmp").touch()  # it may be being written this moment
    with folder.locked(tmp_path):
        assert not half.exists()
    assert sorted(os.listdir(tmp_path)) == [".certify_sigma_0.25.json.0.tmp", ".lock"]


def test_a_checkpoint_without_config_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "state.pt").write_bytes(b"precious")
    with pytest.raises(InvalidInput, match=r"no config\.toml"):
        folder.claim(tmp_path, CONFIG)
    assert (tmp_path / "state.pt").read_bytes() == b"precious"


def test_weights_without_a_checkpoint_are_not_overwritten(tmp_path: Path) -> None:
    """A finished run may be copied without its state.pt, which nothing but training needs."""
    folder.claim(tmp_path, CONFIG)
    (tmp_path / "model.safetensors").write_bytes(b"precious")
    with pytest.raises(InvalidInput, match=r"no state\.pt, .*; put it back, .*--restart"):
        folder.claim(tmp_path, CONFIG)
    (tmp_path / "state.pt").touch()
    folder.claim(tmp_path, CONFIG)


def test_weights_alone_are_not_overwritten(tmp_path: Path) -> None:
    """An export has the same name. --restart, the remedy, keeps it."""
    out = tmp_path / "run"
    out.mkdir()
    (out / "model.safetensors").write_bytes(b"precious")
    with pytest.raises(InvalidInput, match=r"no state\.pt, .*--restart"):
        folder.claim(out, CONFIG)
    assert [path.name for path in out.iterdir()] == ["model.safetensors"]
    old = folder.move_aside(out)
    assert old is not None
    assert (old / "model.safetensors").read_bytes() == b"precious"


def test_a_refused_run_keeps_what_its_code_was(tmp_path: Path) -> None:
    """Else `covprop certify` would no longer tell that it has changed since."""
    net = tmp_path / "net.py"
    net.write_text("one")
    config = {**CONFIG, "model": {"name": f"{net}:build"}}
    out = tmp_path / "run"
    out.mkdir()
    folder.claim(out, config)
    (out / "model.safetensors").touch()
    before = folder.trained_code(out)
    net.write_text("two")
    with pytest.raises(InvalidInput, match=r"no state\.pt"):
        folder.claim(out, config)
    assert folder.trained_code(out) == before


@pytest.mark.parametrize("section", ["data", "model", "labels"])
def test_an_own_file_that_was_moved_is_to_be_written_into_the_config(
    tmp_path: Path, section: str
) -> None:
    key, ending = {"data": ("name", ""), "model": ("name", ":build"), "labels": ("file", "")}[
        section
    ]
    first, second = tmp_path / "first.py", tmp_path / "second.py"
    first.touch()
    old, new = ({**CONFIG, section: {key: f"{path}{ending}"}} for path in (first, second))
    folder.claim(tmp_path, old)
    for remedy in (
        "continue with the same settings",
        f"if it was moved, write .*{tmp_path}/config",
    ):
        with pytest.raises(InvalidInput, match=f"first.*and now it is.*second.*; {remedy}"):
            folder.claim(tmp_path, new)
        if first.exists():
            first.rename(second)
    config = tmp_path / "config.toml"
    config.write_text(config.read_text().replace("first", "second"))
    folder.claim(tmp_path, new)


def test_a_folder_made_for_nothing_goes_with_its_parents(tmp_path: Path) -> None:
    out = tmp_path / "runs" / "digits" / "one"
    (tmp_path / "runs").mkdir()
    made = folder.make(out)
    assert made == [out, out.parent]
    assert folder.make(out) == []
    with folder.locked(out):
        folder.withdraw(out, ("config.toml",), made)
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_folder_with_something_in_it_stays(tmp_path: Path) -> None:
    out = tmp_path / "runs" / "one"
    for name in ("notes.txt", "state.pt"):
        made = folder.make(out)
        (out / name).write_text("precious")
        with folder.locked(out):
            folder.withdraw(out, (), made)
        assert {path.name for path in out.iterdir()} == {name, ".lock"}
        (out / name).unlink()
    folder.make(tmp_path / "runs" / "two")  # of another process
    with folder.locked(out):
        folder.withdraw(out, (), [out, out.parent])
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["two"]


def test_a_damaged_config(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[train")
    with pytest.raises(InvalidInput, match="not valid TOML"):
        folder.claim(tmp_path, CONFIG)
    (tmp_path / "config.toml").write_text("train = 1")
    with pytest.raises(InvalidInput, match="sections only"):
        folder.claim(tmp_path, CONFIG)


def test_a_place_that_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CovpropError, match="--out"):
        folder.make(tmp_path / "file" / "run")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(CovpropError, match=r"Permission denied.*--out"):
            folder.make(tmp_path / "run")
    finally:
        tmp_path.chmod(0o700)


def test_nothing_is_moved_aside_where_nothing_is(tmp_path: Path) -> None:
    assert folder.move_aside(tmp_path / "none") is None


def test_a_name_that_a_config_cannot_hold_is_one_sentence(tmp_path: Path) -> None:
    config = {"data": {"augment": "none", "name": os.fsdecode(b"/caf\xe9")}}
    with pytest.raises(InvalidInput, match=r"gives for name a path that is not UTF-8.*rename"):
        folder.claim(tmp_path, config)
    assert not list(tmp_path.iterdir())
