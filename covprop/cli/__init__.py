"""The command line: one verb a file, gathered here.

A user's mistake (`CovpropError`) becomes one sentence on stderr and exit code 2; too little memory
one with exit code 1, as any other failure has; Ctrl-C 130.
"""

import io
import sys
from typing import Annotated

import typer

from covprop import __version__
from covprop.allocator import keep_freed_memory
from covprop.cli.bench import app as bench_app
from covprop.cli.certify import certify
from covprop.cli.data import app as data_app
from covprop.cli.demo import demo
from covprop.cli.estimate import estimate
from covprop.cli.explore import explore
from covprop.cli.export import export
from covprop.cli.inspect import inspect
from covprop.cli.interrupts import noted_interrupts
from covprop.cli.list import list_
from covprop.cli.noisy import noisy
from covprop.cli.predict import predict
from covprop.cli.report import report
from covprop.cli.train import train
from covprop.errors import CovpropError, first_line, gpu_failed, out_of_memory
from covprop.files import FULL

app = typer.Typer(
    name="covprop",
    help="Train, certify and report classifiers whose predictions hold within a radius.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _tell_version(asked: bool) -> None:
    if asked:
        typer.echo(f"covprop {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_tell_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Keeps typer in sub-command mode however many verbs are registered."""


app.command("certify")(certify)
app.command("predict")(predict)
app.command("export")(export)
app.command("estimate")(estimate)
app.command("report")(report)
app.command("inspect")(inspect)
app.command("explore")(explore)
app.add_typer(data_app, name="data")
app.add_typer(bench_app, name="bench")
app.command("train")(train)
app.command("noisy")(noisy)
app.command("list")(list_)
app.command("demo")(demo)


def main() -> None:
    """Run the command line; the `covprop` script and `python -m covprop` both start here."""
    keep_freed_memory()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a σ or ± may be beyond the locale's letters
            stream.reconfigure(errors="backslashreplace")
    with noted_interrupts() as interrupts:
        try:
            app()
        except Exception as error:
            if interrupts:
                sys.exit(130)
            if isinstance(error, CovpropError):
                print(f"covprop: {error}", file=sys.stderr)
                sys.exit(2)
            if gpu_failed(error):
                print(
                    f"covprop: the GPU failed ({first_line(error)}). What was written is kept: "
                    "to train or to certify, give the same command again, and it goes on.",
                    file=sys.stderr,
                )
                sys.exit(1)
            if isinstance(error, OSError) and error.errno in FULL and error.filename is None:
                print(
                    f"covprop: what is printed cannot be written ({error.strerror}); free some "
                    "space. The files that were written are whole.",
                    file=sys.stderr,
                )
                sys.exit(1)
            if not out_of_memory(error):
                raise
            print(
                f"covprop: out of memory ({first_line(error).split('. ')[0]}); a smaller batch "
                "(--batch, or train.batch_size in training), image or model needs less.",
                file=sys.stderr,
            )
            sys.exit(1)
