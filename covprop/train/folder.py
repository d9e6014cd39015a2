"""The run folder before training: made, held, continued or refused, never silently overwritten."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from covprop.errors import InvalidInput
from covprop.files import unwritable, write
from covprop.models.own import code_file, code_hash
from covprop.train.recipe import Config, resolve
from covprop.train.toml import dumps

HARMLESS = {
    ("data", "workers"),
    ("train", "checkpoint_minutes"),
    ("train", "compile"),
    ("train", "device"),
    ("train", "fast"),
    ("train", "tensorboard"),
}
"""Keys that may change between the parts of a run: they do not change what is computed, but for
rounding."""


def make(out: Path) -> list[Path]:
    """The folder itself, with its parents; returns those that were not there, innermost first."""
    missing = [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(out, error) from error
    return missing


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Hold the folder for one process: two trainers in one folder would overwrite each other."""
    import fcntl

    path = out / ".lock"
    try:
        file = path.open("w")
    except OSError as error:
        raise unwritable(path, error) from error
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            raise InvalidInput(
                f"Another process is training into {out}; wait for it, or choose another --out."
            ) from error
        except OSError:
            pass  # a file system without locks
        else:
            _sweep(out)
        yield


def _sweep(out: Path) -> None:
    """Remove files that killed trainers left half written; only the lock's holder writes these."""
    for pattern in (".state.pt.*.tmp", ".model.safetensors.*.tmp"):
        for half in out.glob(pattern):
            with suppress(OSError):
                half.unlink()


def move_aside(out: Path) -> Path | None:
    """Rename an existing run, so that a new one can start there; returns its new place."""
    if not any((out / name).exists() for name in ("config.toml", "state.pt", "model.safetensors")):
        return None
    with locked(out):
        pass  # a run that is still being trained must stay where it is
    number = 1
    while (old := out.with_name(f"{out.name}.old-{number}")).exists():
        number += 1
    try:
        out.rename(old)
    except OSError as error:
        raise unwritable(old, error) from error
    return old


def claim(out: Path, config: Config) -> None:
    """Write `config` into a fresh folder, or check that the run there has the same one.

    The same goes for the code of an own model.
    """
    path = out / "config.toml"
    if path.exists():
        before = _completed(read_config(path))
        now = tomllib.loads(dumps(config))
        if differing := difference(before, now):
            section, key = differing
            was, now_is = _shown(before, section, key), _shown(now, section, key)
            remedy = "continue with the same settings"
            if _is_gone(before, section, key):
                remedy = f"if it was moved, write where it is now into {path}; else put it back"
            raise InvalidInput(
                f"{out} holds a run where {section}.{key} is {was}, and now it is {now_is}; "
                f"{remedy}, choose another --out, or start over with "
                "--restart (which keeps the old run beside it)."
            )
        _claim_weights(out)
        _claim_code(out, config)
        return
    if (out / "state.pt").exists():
        raise InvalidInput(
            f"{out} holds a checkpoint (state.pt) but no config.toml that says what it is of; "
            "choose another --out, or start over with --restart."
        )
    _claim_weights(out)
    try:
        content = dumps(config).encode()
    except UnicodeEncodeError as error:
        name = error.object[: error.start].rpartition("\n")[2].partition(" ")[0]
        raise InvalidInput(
            f"The recipe gives for {name} a path that is not UTF-8, which {path.name} has to be; "
            "rename the file or folder."
        ) from None
    write(path, content)
    _claim_code(out, config)


def _claim_code(out: Path, config: Config) -> None:
    """Note what an own model's file holds, or check that it is what the run was begun with."""
    name = str(config.get("model", {}).get("name", ""))
    now = code_hash(name)
    if now is None:
        return
    file = code_file(name)
    if not (out / "state.pt").exists():  # nothing was trained that this run would go on from
        write(out / CODE, f"{now}  {file}\n".encode())
    elif (before := trained_code(out)) not in (None, now):
        raise InvalidInput(
            f"{file}, the model's code, has changed since {out} was begun with it (its SHA-256 was "
            f"{before:.12}… and is {now:.12}…); put the old code back, choose another --out, or "
            "start over with --restart (which keeps the old run beside it)."
        )


def _claim_weights(out: Path) -> None:
    """Weights come after their state.pt: alone they are a copy, which a new training would lose."""
    if (out / "model.safetensors").exists() and not (out / "state.pt").exists():
        raise InvalidInput(
            f"{out} holds weights (model.safetensors) but no state.pt, which training would go on "
            "from; put it back, choose another --out, or start over with --restart (which keeps "
            "the old run beside it)."
        )


def trained_code(out: Path) -> str | None:
    """SHA-256 of the own model's file that the run was begun with; earlier versions kept none."""
    try:
        return next(iter((out / CODE).read_text(encoding="utf-8").split()), None)
    except (OSError, UnicodeDecodeError):
        return None


CODE = "model.sha256"  # as `sha256sum` writes it, so that `sha256sum -c` says whether it changed
NAMES = ("config.toml", CODE, "labels.tsv", "metrics.jsonl")


def to_come(out: Path) -> tuple[str, ...]:
    """The files that a run starting in `out` will write there before its first epoch ends."""
    if (out / "config.toml").exists():
        return ()
    return tuple(name for name in NAMES if not (out / name).exists())


def withdraw(out: Path, names: tuple[str, ...], made: Sequence[Path] = ()) -> None:
    """Remove what a run wrote that failed to start, so that its corrected recipe can start there.

    `names` is what `to_come` gave before: other files are not the run's. Of the folders only those
    `made` for it are removed, and only if nothing else is in them. The lock must be held.
    """
    rows = out / "metrics.jsonl"
    if (out / "state.pt").exists() or (rows.exists() and rows.stat().st_size):
        return
    for name in names:
        (out / name).unlink(missing_ok=True)
    if made and [path.name for path in out.iterdir()] == [".lock"]:
        with suppress(OSError):  # not empty: another process uses it
            (out / ".lock").unlink()
            for folder in made:
                folder.rmdir()


def read_config(path: Path) -> Config:
    """The nested values of a run's config.toml."""
    try:
        config = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        remedy = _runs_below(path.parent) or "give a folder that `covprop train` wrote"
        raise InvalidInput(
            f"{path.parent} is not a run folder: it has no config.toml; {remedy}."
        ) from None
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} is not valid TOML: {error}.") from error
    if not all(isinstance(values, dict) for values in config.values()):
        raise InvalidInput(f"{path} is not the config of a run: it must have sections only.")
    return config


def _runs_below(path: Path) -> str:
    """`give one of the runs in it, such as …`, if there are any one or two folders below."""
    found = [config.parent for deep in ("*", "*/*") for config in path.glob(f"{deep}/config.toml")]
    runs = sorted(map(str, found))
    if not runs:
        return ""
    shown = f"{', '.join(runs[:3])}{f' and {len(runs) - 3} more' if runs[3:] else ''}"
    return f"give one of the runs in it: {shown}" if runs[1:] else f"give the run in it, {shown}"


def _completed(config: Config) -> Config:
    """A run's config with the defaults of options that were added since."""
    try:
        return tomllib.loads(dumps(resolve(config).as_dict()))
    except InvalidInput:  # an option or a file that no longer exists: compare the config as it is
        return config


def difference(one: Config, two: Config) -> tuple[str, str] | None:
    """The first (section, key) that differs and matters, or None."""
    for section in {**one, **two}:
        left, right = one.get(section, {}), two.get(section, {})
        for key in {**left, **right}:
            # As they are written, since nan is no nan.
            same = left.get(key) == right.get(key) or repr(left.get(key)) == repr(right.get(key))
            if (section, key) not in HARMLESS and not same:
                return section, key
    return None


def _is_gone(config: Config, section: str, key: str) -> bool:
    """Whether that value is the full name of an own file or folder that is not there any more."""
    if key not in ("name", "file"):
        return False
    value = str(config.get(section, {}).get(key, ""))
    path = code_file(value) if ".py:" in value else Path(value)
    return path.is_absolute() and not path.exists()


def _shown(config: Config, section: str, key: str) -> Any:
    values = config.get(section, {})
    return repr(values[key]) if key in values else "unset"
