"""What verbs on a trained model share: the model meant, its σ and device, and its images."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from covprop.device import is_first
from covprop.errors import CovpropError, InvalidInput

if TYPE_CHECKING:
    import torch
    from torch import nn

    from covprop.data import AnyImages, Batch, Facts
    from covprop.run import Run


@dataclass
class Trained:
    """A trained classifier and what is known about it."""

    model: "nn.Module"
    arch: str
    dataset: str
    num_classes: int
    image_shape: tuple[int, int, int]
    sigma: float | None  # the noise it was trained with, where known
    folder: Path
    stem: str  # how its logs are called, before certify_sigma_S
    holdout: int | None = None  # training images that it has not seen
    epochs: tuple[int, int] | None = None  # trained and planned, where known
    run: "Run | None" = None  # the run whose own data set it is
    options: dict[str, Any] = field(default_factory=dict)  # the model's own

    def log_path(self, verb: str, sigma: float) -> Path:
        """`RUN/certify_sigma_0.25.tsv`; beside a checkpoint file its name comes first."""
        return self.folder / f"{self.stem}{verb}_sigma_{sigma:g}.tsv"

    def choose_sigma(self, sigma: float | None) -> float:
        """The σ given, else the one trained with; a warning if they differ."""
        if sigma is None:
            if self.sigma is None:
                raise InvalidInput("a checkpoint file does not say its noise level; add --sigma.")
            return self.sigma
        if self.sigma is not None and 0 < sigma != self.sigma:
            warn(
                f"sigma = {sigma:g}, but the model was trained with {self.sigma:g}; certificates "
                "are valid at any sigma, and probably small."
            )
        return sigma

    def load_images(self, split: str, root: Path | None) -> "AnyImages":
        """The split to certify; it must have the model's classes and image size."""
        from covprop import data

        if self.run is not None:
            self.run.check_data()
        images = data.load(
            self.dataset, split, root, holdout=self.holdout, image_shape=self.image_shape
        )
        _check_fit(self.dataset, images, self.num_classes, self.image_shape)
        return images

    def facts(self) -> "Facts | AnyImages | None":
        """What the data set says of itself; None of an own one that is not there any more."""
        from covprop import data

        if self.dataset in data.DATASETS:
            return data.DATASETS[self.dataset]
        with contextlib.suppress(CovpropError):
            return data.load(self.dataset, "test", image_shape=self.image_shape)
        return None

    def class_names(self) -> tuple[str, ...]:
        """The data set's own names for the classes, or their numbers."""
        facts = self.facts()
        names = facts.classes if facts else ()
        return names if len(names) == self.num_classes else tuple(map(str, range(self.num_classes)))

    def choose_positions(
        self, images: "AnyImages", skip: int | None, most: int | None
    ) -> list[int]:
        """Every skip-th image (default: the data set's habit), `most` of them at most."""
        from covprop.data import DATASETS

        if skip is None:
            skip = DATASETS[self.dataset].certify_skip if self.dataset in DATASETS else 1
        if skip < 1 or (most is not None and most < 1):
            raise InvalidInput("--skip and --max are at least 1.")
        return list(range(0, len(images), skip))[:most]

    def settings(self, split: str, images: "AnyImages", **more: Any) -> dict[str, Any]:
        """What the rows of a log depend on, as its side-car keeps it."""
        from covprop.checkpoints import weights_hash
        from covprop.data import DATASETS
        from covprop.data.fingerprint import fingerprint
        from covprop.models.own import code_hash

        found = {**more, "data": self.dataset, "split": split, "weights": weights_hash(self.model)}
        if code := code_hash(self.arch):
            found["model_code"] = code
        # A registered set is what it is; an own one may have changed since the log was begun.
        return found if self.dataset in DATASETS else found | {"images": fingerprint(images)}


def open_trained(
    run: Path, *, arch: str | None, dataset: str | None, normalize: bool | None
) -> Trained:
    """The run folder or checkpoint file that the user named."""
    dataset = _in_full(dataset) if dataset else None
    if run.is_dir():
        return _open_run(run, arch=arch, dataset=dataset, normalize=normalize)
    if not run.is_file():
        raise InvalidInput(
            f"There is no run folder or checkpoint {run}; `covprop train RECIPE --out {run}` "
            "would make one."
        )
    from covprop import checkpoints, data
    from covprop.data import DATASETS
    from covprop.names import nearest

    own = dataset is not None and Path(dataset).exists()
    if dataset is None or (dataset not in DATASETS and not own):
        what = f'there is no data set "{dataset}"{nearest(dataset, DATASETS)}' if dataset else ""
        if not what and (run.parent / "config.toml").is_file():
            raise InvalidInput(f"{run} is part of a run; give its folder, {run.parent}.")
        raise InvalidInput(
            f"{what or f'{run} does not say what it was trained on'}; "
            f"add --dataset with one of {', '.join(DATASETS)}, or with the path of an own set."
        )
    read = checkpoints.read(run)
    facts: data.Facts | data.AnyImages
    if dataset not in DATASETS:
        facts = data.load(dataset, "test", image_shape=read.image_shape)
    elif read.image_shape is not None and data.in_folders(dataset):
        facts = replace(DATASETS[dataset], image_shape=read.image_shape)
    else:
        facts = DATASETS[dataset]
    if isinstance(facts, data.FolderImages) and read.image_shape is None:
        warn(
            f"{dataset} is read at {_times(facts.image_shape)}, as {run} does not say its image "
            "size; for a model of another one, store the images at its size in an .npz file."
        )
    _check_fit(dataset, facts, facts.num_classes, read.image_shape or facts.image_shape)
    model = checkpoints.load(
        read,
        arch=arch,
        num_classes=facts.num_classes,
        image_shape=facts.image_shape,
        mean=facts.mean or (),
        std=facts.std or (),
        normalize=normalize,
    )
    name = arch or read.arch or ""
    return Trained(
        model,
        name,
        dataset,
        facts.num_classes,
        facts.image_shape,
        sigma=None,
        folder=run.parent,
        stem=f"{run.stem}.",
        options=read.options_of(name),
    )


def _open_run(
    run: Path, *, arch: str | None, dataset: str | None, normalize: bool | None
) -> Trained:
    from covprop.run import Run

    for option, value in (("--arch", arch), ("--normalize", normalize)):
        if value is not None:
            raise InvalidInput(
                f"{option} is for checkpoint files; the run folder {run} says its own."
            )
    opened = Run(run)
    if file := opened.changed_code():
        warn(
            f"{file}, the model's code, has changed since {run} was trained with it; what follows "
            "is about its weights in the code of now, which may be another network."
        )
    return Trained(
        opened.load_model(),
        str(opened.config["model"]["name"]),
        dataset or str(opened.config["data"]["name"]),
        opened.num_classes,
        opened.image_shape,
        sigma=opened.sigma,
        folder=run,
        stem="",
        holdout=opened.holdout if dataset is None else None,
        epochs=opened.epochs,
        run=opened if dataset is None else None,
        options={key: value for key, value in opened.config["model"].items() if key != "name"},
    )


def _check_fit(
    dataset: str,
    images: "Facts | AnyImages",
    num_classes: int,
    image_shape: tuple[int, int, int],
) -> None:
    if (images.num_classes, images.image_shape) != (num_classes, image_shape):
        raise InvalidInput(
            f"{dataset} has {images.num_classes} classes and images of "
            f"{_times(images.image_shape)}, but the model takes {num_classes} and "
            f"{_times(image_shape)}."
        )


def _in_full(dataset: str) -> str:
    """A data set's name; of an own set the full path, by which logs know it from any folder."""
    from covprop.data import DATASETS

    path = Path(dataset).expanduser()
    return str(path.resolve()) if dataset not in DATASETS and path.exists() else dataset


def warn(message: str) -> None:
    """One line on stderr, said by the first process only."""
    if is_first():
        typer.echo(f"covprop: warning: {message}", err=True)


def groups(
    images: "AnyImages", todo: list[int], group: int, device: "torch.device"
) -> Iterator[tuple["Batch", list[int]]]:
    """The chosen images, `group` at a time, each with its positions in the data set."""
    import torch

    from covprop.data import batches
    from covprop.data.holdout import take

    part = take(images, torch.tensor(todo))
    for batch in batches(part, group, epoch=0, seed=0, device=device, shuffle=False):
        yield batch, [todo[i] for i in batch.index.tolist()]


def _times(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape))
