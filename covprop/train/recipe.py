"""Recipes: every experiment as a TOML file, fully checked before anything runs.

Example:
    >>> recipe = load("digits/gaussian-0.25", ["train.epochs=3", "model=lenet"])
    >>> recipe.train.epochs, recipe.noise.sigma
    (3, 0.25)
"""

from __future__ import annotations

import copy
import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import covprop
from covprop.errors import InvalidInput
from covprop.names import nearest, unknown
from covprop.options import accepted, call, check_options
from covprop.train import toml
from covprop.train.options import DataOptions, LabelOptions, NoiseOptions, TrainOptions

SECTIONS = ("data", "labels", "model", "noise", "method", "weighting", "train")
NAMED = ("data", "labels", "model", "method", "weighting")
"""Sections that name a thing: a plain value for one of them sets its `name`."""

GIVEN = {
    "model": ("name", "num_classes", "image_shape"),
    "method": ("name", "sigma", "input_shape"),
    "noisy method": ("name", "task"),
    "weighting": ("name", "count", "device"),
}
"""Parameters of the named things that the trainer itself provides, so no recipe may."""

Config = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Recipe:
    """A checked recipe. `model`, `method` and `weighting` are `name` and that thing's options.

    With `labels` the run learns from labels that may be wrong, by a method of `covprop.noisy`.
    """

    data: DataOptions
    model: dict[str, Any]
    noise: NoiseOptions
    method: dict[str, Any]
    train: TrainOptions
    weighting: dict[str, Any] | None = None
    labels: LabelOptions | None = None

    def as_dict(self) -> Config:
        """Plain nested values; what cannot be said in TOML (None) is left out."""
        config: Config = {}
        for section in SECTIONS:
            part = getattr(self, section)
            if part is None:
                continue
            values = dict(part) if isinstance(part, dict) else dataclasses.asdict(part)
            config[section] = {k: _plain(v) for k, v in values.items() if v is not None}
        return config


def shipped() -> dict[str, Path]:
    """Name -> file of every recipe that comes with the package, sorted."""
    package = Path(covprop.__file__).parent
    folder = next(
        (d for d in (package / "recipes", package.parent / "recipes") if d.is_dir()), None
    )
    if folder is None:
        return {}
    files = sorted(folder.rglob("*.toml"))
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in files}


def find(recipe: str) -> Path:
    """The file called `recipe`, or the shipped recipe of that name."""
    file = Path(recipe).expanduser()
    if file.is_file():
        return file
    names = shipped()
    name = recipe.removesuffix(".toml")
    if name in names:
        return names[name]
    if (file / "config.toml").is_file():
        raise InvalidInput(
            f"{file} is a run folder; its recipe is {file / 'config.toml'}, with --out {file} to "
            "go on with that run."
        )
    ends = [f'"{known}"' for known in names if known.endswith(f"/{name}")]
    meant = f" (did you mean one of {', '.join(ends)}?)" if ends else nearest(name, names)
    raise InvalidInput(
        f'There is no recipe file or shipped recipe "{recipe}"{meant}; '
        "`covprop list recipes` shows the shipped ones."
    )


def load(recipe: str, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe file or a shipped name, apply `key=value` overrides, check everything."""
    if isinstance(overrides, str):
        raise InvalidInput(f'overrides is the string "{overrides}"; give a list, ["{overrides}"].')
    file = find(recipe)
    try:
        raw = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"Recipe {file} is not valid TOML: {error}.") from error
    except OSError as error:
        raise InvalidInput(f"Recipe {file} cannot be read: {error.strerror}.") from error
    found = _resolved(raw, overrides, file.parent)
    if isinstance(found, Recipe):
        return found
    blamed = _to_blame(found, raw, overrides, file.parent)
    where = " ".join(f"--set {one}" for one in blamed) or f"Recipe {file}"
    raise InvalidInput(f"{where}: {found}")


def _resolved(raw: Config, overrides: Sequence[str], beside: Path) -> Recipe | str:
    """The recipe with these overrides, or the sentence about what is wrong with it."""
    raw = copy.deepcopy(raw)
    for override in overrides:
        _override(raw, override)
    try:
        return resolve(raw, beside)
    except InvalidInput as error:
        return str(error)


def _to_blame(said: str, raw: Config, overrides: Sequence[str], beside: Path) -> Sequence[str]:
    """The overrides without which that error would not occur; none if the file alone causes it."""
    if not overrides or _resolved(raw, (), beside) == said:
        return ()
    rest = {one: [other for other in overrides if other != one] for one in overrides}
    return [one for one in rest if _resolved(raw, rest[one], beside) != said] or overrides


def resolve(raw: Mapping[str, Any], beside: Path = Path()) -> Recipe:
    """Check nested values against everything they name and fill in every default.

    Relative files (own data, own model) are looked for in the working folder, then in `beside`,
    and made absolute, so that a run folder can be used from anywhere.
    """
    for section, values in raw.items():
        if section not in SECTIONS:
            raise InvalidInput(
                f"unknown section [{section}]{nearest(section, SECTIONS)}; "
                f"a recipe has {', '.join(SECTIONS)}."
            )
        if not isinstance(values, Mapping):
            raise InvalidInput(f"[{section}] must be a section, not {values!r}.")
    parts = {section: dict(raw.get(section, {})) for section in SECTIONS}
    train = call("train", TrainOptions, {}, parts["train"])
    train.check()
    labels = _labels(parts["labels"], beside)
    if labels is not None and parts["data"].get("holdout") is not None:
        raise InvalidInput("data.holdout does not go with [labels]; remove one of them.")
    method = _method(parts["method"], noisy=labels is not None)
    weighting = _weighting(parts["weighting"])
    if train.compile is True and weighting is not None and method.get("estimator") == "linearized":
        raise InvalidInput(
            'With [weighting] and method.estimator = "linearized" a step cannot be compiled; '
            "set train.compile = false."
        )
    if labels is not None and weighting is not None:
        raise InvalidInput(
            "[weighting] does not go with [labels], whose methods choose images themselves; "
            'remove it, or use method "radius".'
        )
    return Recipe(
        data=_data(parts["data"], beside),
        model=_model(parts["model"], beside),
        noise=call("noise", NoiseOptions, {}, parts["noise"]),
        method=method,
        train=train,
        weighting=weighting,
        labels=labels,
    )


def _data(given: dict[str, Any], beside: Path) -> DataOptions:
    from covprop.data import DATASETS

    options = call("data", DataOptions, {}, given)
    if options.name in DATASETS:
        return options
    path = _absolute(options.name, beside)
    if path is None:
        raise InvalidInput(
            f'there is no data set or file "{options.name}"{nearest(options.name, DATASETS)}; '
            "`covprop list datasets` shows the registered ones, and an own set is an .npz file or "
            "a folder of class folders."
        )
    return dataclasses.replace(options, name=str(path))


def _model(given: dict[str, Any], beside: Path) -> dict[str, Any]:
    from covprop.models import find as find_model

    name = _name("model", given)
    if ".py:" in name:
        file, _, function = name.rpartition(":")
        name = f"{_absolute(file, beside) or file}:{function}"
    options = accepted(find_model(name), skip=GIVEN["model"])
    return {"name": name} | check_options("model", given, options)


def _labels(given: dict[str, Any], beside: Path) -> LabelOptions | None:
    if not given:
        return None
    options = call("labels", LabelOptions, {}, given)
    options.check()
    if options.file is None:
        return options
    path = _absolute(options.file, beside)
    if path is None:
        raise InvalidInput(f"there is no file {options.file} (labels.file).")
    return dataclasses.replace(options, file=str(path))


def _method(given: dict[str, Any], noisy: bool) -> dict[str, Any]:
    from covprop.methods import METHODS
    from covprop.noisy import METHODS as NOISY

    known: Mapping[str, Any] = NOISY if noisy else METHODS
    name = _name("method", given)
    if name not in known:
        other = NOISY if not noisy else METHODS
        where = "without" if noisy else "with"
        hint = f" ({name} is for recipes {where} [labels])" if name in other else ""
        raise unknown("method", name, known, hint)
    options = accepted(known[name], skip=GIVEN["noisy method" if noisy else "method"])
    return {"name": name} | check_options("method", given, options)


def _weighting(given: dict[str, Any]) -> dict[str, Any] | None:
    if not given:
        return None
    from covprop.methods import RadiusWeights

    name = _name("weighting", given)
    if name == "none":
        return None
    if name not in ("radius", "probability"):
        raise InvalidInput(
            f'weighting.name must be "none", "radius" or "probability", not "{name}".'
        )
    options = accepted(RadiusWeights, skip=GIVEN["weighting"])
    return {"name": name} | check_options("weighting", given, options)


def _name(section: str, given: dict[str, Any]) -> str:
    """Take the `name` out of a section."""
    name = given.pop("name", None)
    if not isinstance(name, str) or not name:
        raise InvalidInput(f"the recipe lacks {section}.name; add it, or --set {section}=NAME.")
    return name


def _absolute(name: str, beside: Path) -> Path | None:
    if not name:  # which would be the working folder
        return None
    tries = (Path(name).expanduser(), beside / name)
    return next((path.resolve() for path in tries if path.exists()), None)


def _override(raw: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    section, dot, option = key.strip().partition(".")
    if not equals or (dot and not option):
        raise InvalidInput(f'--set takes key=value such as train.epochs=3, not "{override}".')
    if section not in SECTIONS:
        owner = next((s for s, kind in _DATACLASSES.items() if section in accepted(kind)), None)
        meant = f' (did you mean "{owner}.{section}"?)' if owner else nearest(section, SECTIONS)
        raise InvalidInput(
            f'--set {key}: there is no section "{section}"{meant}; '
            f"write section.key=value with one of {', '.join(SECTIONS)}."
        )
    if not dot and section not in NAMED:
        raise InvalidInput(f"--set {section}: say which key, as {section}.KEY={text}.")
    part = raw.setdefault(section, {})
    value = toml.value(text)
    option = option or "name"
    if option == "name" and section in ("model", "method", "labels") and part.get("name") != value:
        part.clear()  # the options that stood there belonged to the thing that is replaced
    part[option] = value


_DATACLASSES = {
    "data": DataOptions,
    "noise": NoiseOptions,
    "train": TrainOptions,
    "labels": LabelOptions,
}


def _plain(value: Any) -> Any:
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value
