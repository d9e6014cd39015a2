"""`covprop data`: get data sets and see which are here."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from covprop.data.download import Progress

app = typer.Typer(no_args_is_help=True, help="Get data sets and see which are here.")

Root = Annotated[
    Path | None,
    typer.Option(
        "--data",
        "--root",
        metavar="DIR",
        help="The folder that holds data sets.",
        envvar="COVPROP_DATA",
        show_default="./data",
        file_okay=False,
    ),
]


def _names(incomplete: str) -> list[str]:
    from covprop.data.registry import DATASETS

    return [name for name in DATASETS if name.startswith(incomplete)]


@app.command("get")
def get_command(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A registered set.", autocompletion=_names)
    ],
    root: Root = None,
    mirror: Annotated[
        str | None,
        typer.Option(
            "--mirror",
            metavar="URL",
            help="Fetch the official files from here instead; the file names are appended.",
        ),
    ] = None,
) -> None:
    """Download a data set from its official address and verify its checksums.

    Stopped half-way, the same command goes on where it stopped. Nothing that
    is already there is overwritten: a damaged file is kept as FILE.old.

    \b
    Examples:
      covprop data get mnist
      covprop data get cifar10 --data ~/data
      covprop data get svhn --mirror https://my.server/svhn
    """
    from covprop.data.get import get

    try:
        with _Bars() as bars:
            folder = get(name, root, mirror=mirror, say=bars.say, watch=bars.watch)
    except KeyboardInterrupt:
        typer.echo("\nStopped; the same command goes on where it stopped.", err=True)
        raise typer.Exit(130) from None
    typer.echo(f"{name} is ready in {folder}")


@app.command("list")
def list_command(
    root: Root = None,
    check: Annotated[
        bool, typer.Option("--check", help="Read every set and verify its checksums.")
    ] = False,
) -> None:
    """Show every registered data set, where it was found, size and state.

    \b
    Examples:
      covprop data list
      covprop data list --data ~/data --check
    """
    from rich.table import Table

    from covprop.cli.console import wide_console
    from covprop.data.locate import data_root
    from covprop.data.registry import DATASETS
    from covprop.data.status import status

    table = Table("name", "classes", "image", "train", "test", "state", "size", box=None)
    table.add_column("folder", overflow="fold")
    details = []
    for facts in DATASETS.values():
        found = status(facts, root, check=check)
        table.add_row(
            facts.name,
            str(facts.num_classes),
            "×".join(map(str, facts.image_shape)),
            f"{facts.train_size:,}",
            f"{facts.test_size:,}",
            found.state,
            "" if found.size is None else f"{found.size / 1e6:.1f} MB",
            str(found.folder or ""),
        )
        if found.detail and found.state != "not here":
            details.append(found.detail)
    wide_console(10_000).print(table)  # never cut a path short
    for detail in details:
        typer.echo(detail)
    typer.echo(f"Data folder: {data_root(root)}; `covprop data get NAME` fetches a set into it.")


class _Bars:
    """Progress bars on a terminal, a line each tenth of a file otherwise."""

    def __init__(self) -> None:
        from rich import progress

        self._bars = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.DownloadColumn(),
            progress.TransferSpeedColumn(),
            progress.TimeRemainingColumn(),
        )
        self._live = self._bars.console.is_terminal

    def __enter__(self) -> "_Bars":
        if self._live:
            self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live:
            self._bars.stop()

    def say(self, line: str) -> None:
        if self._live:
            self._bars.console.print(line, highlight=False, markup=False)
        else:
            typer.echo(line)

    def watch(self, name: str) -> "Progress":
        if self._live:
            task = self._bars.add_task(name)
            return lambda done, total: self._bars.update(task, completed=done, total=total)
        said = -1

        def lines(done: int, total: int | None) -> None:
            nonlocal said
            tenth = 10 * done // total if total else -1
            if tenth > said:
                said = tenth
                typer.echo(f"{name}: {done / 1e6:.1f} of {(total or 0) / 1e6:.1f} MB")

        return lines
