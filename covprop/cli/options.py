"""Options that several verbs share, so that they read the same everywhere."""

from pathlib import Path
from typing import Annotated

import typer

RunArgument = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="A run folder, or a checkpoint file.", show_default=False),
]
Sigma = Annotated[
    float | None,
    typer.Option(help="Noise level on the pixel scale [0, 1].", show_default="as trained"),
]
Samples = Annotated[int, typer.Option("--n", help="Noisy samples of each image.")]
Alpha = Annotated[
    float, typer.Option(help="Probability, for each image, that what is said of it is wrong.")
]
Skip = Annotated[
    int | None,
    typer.Option(help="Take every SKIP-th image.", show_default="the data set's, CIFAR-10: 20"),
]
Max = Annotated[
    int | None,
    typer.Option("--max", help="Take at most this many images, counted after --skip."),
]
Split = Annotated[str, typer.Option(help="test, train, or what the run held out: holdout.")]
Seed = Annotated[int, typer.Option(help="Seed of the noise.")]
Bf16 = Annotated[bool, typer.Option("--bf16", help="Run the network in bfloat16.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")]
Batch = Annotated[
    int | None,
    typer.Option(
        help="Samples in one forward pass on a GPU.", show_default="by image size; 32 px: 2112"
    ),
]
Fast = Annotated[
    bool | None,
    typer.Option(
        "--fast/--no-fast",
        help="Replay passes of one shape as a CUDA graph, or run them plainly on the same noise; "
        "on a CPU --fast draws the noise of a GPU.",
        show_default="fast on a GPU, if a hundred passes are needed",
    ),
]
Compiled = Annotated[
    bool | None,
    typer.Option(
        "--compile/--no-compile",
        help="Compile the fast passes (some ten seconds, then faster).",
        show_default="where the work is long enough",
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(help="Folder of the data sets.", show_default="$COVPROP_DATA, else ./data"),
]
Restart = Annotated[
    bool,
    typer.Option(
        "--restart", help="Begin anew; a log that is there is kept as LOG.old-1 and so on."
    ),
]
Arch = Annotated[
    str | None, typer.Option(help="Architecture of a checkpoint file that does not name it.")
]
Dataset = Annotated[
    str | None,
    typer.Option(
        help="Data set, by name or path.", show_default="the run's; checkpoint files need it"
    ),
]
Normalized = Annotated[
    bool | None,
    typer.Option(
        "--normalize/--no-normalize",
        help="Whether a bare checkpoint expects pixels normalised by the data set's mean and std.",
        show_default=False,
    ),
]
