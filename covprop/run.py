"""A run folder: what `covprop train` leaves behind and every later stage starts from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import nn

from covprop import data, models
from covprop.device import choose_device
from covprop.errors import InvalidInput
from covprop.models.own import code_file, code_hash
from covprop.options import Positive, Range, check_value
from covprop.pixels import Sigma
from covprop.train import checkpoint, folder


class Run:
    """The folder of one run: config.toml, metrics.jsonl, model.safetensors, state.pt, tables.

    Example:
        >>> run = Run("runs/digits/radius-0.25")          # doctest: +SKIP
        >>> run.sigma, run.config["model"]["name"]        # doctest: +SKIP
        (0.25, 'lenet')
        >>> model = run.load_model()                      # doctest: +SKIP
    """

    def __init__(self, path: Path | str) -> None:
        self.folder = Path(path)
        if not self.folder.is_dir():
            raise InvalidInput(
                f"There is no run folder {self.folder}; `covprop train RECIPE --out RUN` makes one."
            )
        self.config = folder.read_config(self.folder / "config.toml")

    @property
    def sigma(self) -> float:
        """The noise level the run was trained for."""
        return float(self._fact("noise", "sigma", Sigma))

    @property
    def num_classes(self) -> int:
        return int(self._fact("data", "num_classes", int))

    @property
    def image_shape(self) -> tuple[int, int, int]:
        channels, height, width = self._fact("data", "image_shape", tuple[int, int, int])
        return channels, height, width

    @property
    def holdout(self) -> int | None:
        """How many training images it left out, to be certified as split "holdout"."""
        held = self.config.get("data", {}).get("holdout")
        return None if held is None else int(self._fact("data", "holdout", int))

    @property
    def epochs(self) -> tuple[int, int] | None:
        """How many epochs are trained, and of how many; None where the folder does not say."""
        planned = self.config.get("train", {}).get("epochs")
        if not isinstance(planned, int) or not (self.folder / "metrics.jsonl").exists():
            return None
        return len(self.metrics()), planned

    def load_model(self, device: torch.device | str = "cpu") -> nn.Module:
        """The trained model, in eval mode on `device`."""
        where = choose_device(str(device))
        options = dict(self.config.get("model", {}))
        name = str(options.get("name", ""))
        if ".py:" in name and not code_file(name).is_file():
            raise self._moved("model", code_file(name))
        model = models.build(
            str(options.pop("name", "")),
            num_classes=self.num_classes,
            image_shape=self.image_shape,
            **self._normalisation(),
            **options,
        )
        checkpoint.load_weights(self.folder / "model.safetensors", model)
        return model.to(where).eval()

    def changed_code(self) -> Path | None:
        """The own model's file, if it is not what it was when the run was begun."""
        name = str(self.config.get("model", {}).get("name", ""))
        now, trained = code_hash(name), folder.trained_code(self.folder)
        return None if None in (now, trained) or now == trained else code_file(name)

    def load_data(self, split: str, root: Path | None = None) -> data.Images | data.FolderImages:
        """One split ("train", "test" or "holdout") of the data the run was trained on."""
        self.check_data()
        name, shape = str(self._fact("data", "name", str)), self.image_shape
        return data.load(name, split, root, holdout=self.holdout, image_shape=shape)

    def check_data(self) -> None:
        """Raise if the run's data set is a file or folder that is not there any more."""
        name = str(self._fact("data", "name", str))
        if name not in data.DATASETS and not Path(name).expanduser().exists():
            raise self._moved("data", Path(name))

    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl, one an epoch, up to a line that is torn or damaged."""
        path = self.folder / "metrics.jsonl"
        if not path.exists():
            return []
        rows = []
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return rows

    def _moved(self, section: str, path: Path) -> InvalidInput:
        return InvalidInput(
            f"{path}, the {section} of {self.folder}, is not there; put it back, or write where it "
            f"is now as {section}.name into {self.folder / 'config.toml'}."
        )

    def _normalisation(self) -> dict[str, Any]:
        kinds = {"mean": tuple[Annotated[float, Range()], ...], "std": tuple[Positive, ...]}
        given = self.config["data"]
        return {key: self._fact("data", key, kinds[key]) for key in kinds if key in given}

    def _fact(self, section: str, key: str, kind: Any) -> Any:
        path = self.folder / "config.toml"
        try:
            return check_value(f"{section}.{key}", self.config[section][key], kind)
        except KeyError:
            raise InvalidInput(
                f"{path} lacks {section}.{key}; it is not the config of a run that `covprop train` "
                "started."
            ) from None
        except InvalidInput as error:
            raise InvalidInput(f"{path}: {error}") from None
