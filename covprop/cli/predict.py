"""`covprop predict`: what the smoothed classifier says, on a data set or on image files."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covprop.cli import options
from covprop.errors import InvalidInput

if TYPE_CHECKING:
    from torch import Tensor

    from covprop.certify import Prediction


def predict(
    run: options.RunArgument,
    pictures: Annotated[
        list[Path] | None,
        typer.Argument(metavar="IMAGE", help="Image files; without, the data set's images."),
    ] = None,
    sigma: options.Sigma = None,
    n: options.Samples = 100_000,
    alpha: options.Alpha = 0.001,
    skip: options.Skip = None,
    most: options.Max = None,
    split: options.Split = "test",
    bf16: options.Bf16 = False,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    batch: options.Batch = None,
    fast: options.Fast = None,
    compiled: options.Compiled = None,
    data: options.Data = None,
    out: Annotated[
        Path | None, typer.Option(help="The log.", show_default="RUN/predict_sigma_S.tsv")
    ] = None,
    restart: options.Restart = False,
    arch: options.Arch = None,
    dataset: options.Dataset = None,
    normalize: options.Normalized = None,
) -> None:
    """Predict with a smoothed classifier, or abstain where the samples do not settle it.

    \b
    covprop predict runs/digits/radius-linearized-0.25 --n 1000
    covprop predict RUN cat.png dog.png --n 1000

    Image files have the model's size, or any size where it was trained on
    class folders: they are scaled and cropped as its test images were. Their
    answers are printed, not logged.

    A class that is not the smoothed classifier's is printed with probability
    at most alpha. Over a data set, rows go to RUN/predict_sigma_S.tsv (idx,
    label, predict, correct, time); after a kill the same command goes on.
    """
    import torch

    from covprop.certify import predict as vote
    from covprop.certify import predict_each
    from covprop.certify.bounds import fewest_samples
    from covprop.certify.inputs import check_options
    from covprop.certify.rows import PredictRow
    from covprop.cli.filling import fill_log
    from covprop.cli.trained import open_trained
    from covprop.data import in_folders
    from covprop.device import choose_device

    if pictures:
        chosen: dict[str, object] = {"--skip": skip, "--max": most, "--data": data, "--out": out}
        _refuse_with_pictures(chosen | {"--restart": restart or None}, split)
    trained = open_trained(run, arch=arch, dataset=dataset, normalize=normalize)
    level = trained.choose_sigma(sigma)
    where = choose_device(device)
    question: dict[str, Any] = {"sigma": level, "n": n, "alpha": alpha, "seed": seed}
    check_options(level, 1, n, alpha)
    # The test of the top two counts is two-sided: each side has half of alpha.
    if n < (fewest := fewest_samples(alpha / 2)):
        raise InvalidInput(
            f"with --n {n} every image abstains at alpha = {alpha:g}, even if all samples agree; "
            f"{fewest} is the smallest --n that can settle one."
        )
    model = trained.model.to(where)

    asked = {"num_classes": trained.num_classes, "batch_size": batch, "device": where, **question}
    asked |= {"fast": fast, "compiled": compiled, "dtype": torch.bfloat16 if bf16 else None}
    if pictures:
        x = _read_pictures(pictures, trained.image_shape, in_folders(trained.dataset))
        _show(pictures, vote(model, x, **asked), trained.class_names())
        return
    images = trained.load_images(split, data)
    positions = trained.choose_positions(images, skip, most)
    precision = "bfloat16" if bf16 else "float32"
    settings = trained.settings(split, images, **question, mode="predict", precision=precision)

    def evaluate(
        source: "Iterator[tuple[int, Tensor]]", labels: list[int]
    ) -> "Iterator[tuple[list[int], Prediction]]":
        return predict_each(model, source, len(labels), **asked)

    path = out or trained.log_path("predict", level)
    rows = fill_log(
        path,
        settings,
        PredictRow,
        images,
        positions,
        device=where,
        evaluate=evaluate,
        restart=restart,
    )
    if rows is not None:
        right = sum(row.correct for row in rows) / len(rows)
        abstained = sum(row.predict == -1 for row in rows) / len(rows)
        typer.echo(f"{len(rows)} images, accuracy {right:.3f}, abstained {abstained:.1%}\n{path}")


def _refuse_with_pictures(given: dict[str, object], split: str) -> None:
    """Options that choose among a data set's images, or say where their rows go, mean nothing."""
    unused = [option for option, value in given.items() if value is not None]
    unused += ["--split"] if split != "test" else []
    if unused:
        raise InvalidInput(
            f"{unused[0]} is for the images of a data set and does not go with image files, whose "
            "answers are only printed; leave one of them out."
        )


def _read_pictures(paths: Sequence[Path], shape: tuple[int, int, int], cropped: bool) -> "Tensor":
    """Image files as [b, c, h, w] in [0, 1], `cropped` as test images in class folders are."""
    import torch

    from covprop.data.decode import as_tensor, open_image, read_image

    pictures = []
    for path in paths:
        if not path.exists():
            raise InvalidInput(f"There is no image {path}.")
        if cropped:
            pictures.append(read_image(path, shape))
            continue
        image = open_image(path, "L" if shape[0] == 1 else "RGB")
        if (image.height, image.width) != shape[1:]:
            raise InvalidInput(
                f"{path} is {image.height}×{image.width} pixels, but the model takes "
                f"{shape[1]}×{shape[2]}; resize it first."
            )
        pictures.append(as_tensor(image))
    return torch.stack(pictures).float() / 255


def _show(pictures: list[Path], found: "Prediction", names: tuple[str, ...]) -> None:
    for i, path in enumerate(pictures):
        guess = int(found.prediction[i])
        name = names[guess] if guess >= 0 else "abstains"
        typer.echo(f"{path}\t{guess}\t{name}\t{found.count[i]} of {found.n[i]} samples")
