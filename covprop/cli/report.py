"""`covprop report`: tables, curves and a page from certification logs."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN|TSV",
            help="Run folders, folders that hold runs, or certification logs in Cohen's format.",
            show_default=False,
        ),
    ],
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write one self-contained page.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write everything: tables as Markdown, LaTeX and CSV, figures as PNG and SVG, "
            "and the page.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print certified accuracy, average certified radius and more; write tables and figures.

    Intervals are 95 % bootstrap intervals over the certified images. Runs certified in the same
    way on the same images are compared with the best of them image by image, which tells far
    smaller differences apart than their intervals do. A warning says so where runs of one data
    set were certified on different images and do not compare.

    Only files are read: certify_sigma_S.tsv and what lies beside it. Of more than 12 runs in
    several folders, each folder has tables of its own, and with --out figures and a page.

    Runs and logs that --restart set aside (RUN.old-1, LOG.old-1) are left out of
    the report on the folder they are in; give them by name to have them in it.

    \b
    covprop report runs/digits                    one run, on the terminal
    covprop report runs --html report.html        every run under runs/, as a page
    covprop report runs/a log.tsv --out rep       tables, figures, page in rep/
    """
    from rich.text import Text

    from covprop.cli.console import wide_console
    from covprop.errors import InvalidInput
    from covprop.report import read, summarize, write, write_page
    from covprop.report.parts import headed_tables, parts
    from covprop.report.tables import print_table

    if html is not None and html.suffix.lower() not in (".html", ".htm"):
        raise InvalidInput(f"--html names the page, a file ending in .html, not {html}.")
    certifications, warnings = read(paths)
    radii, summaries = summarize(certifications)
    written = []
    if out is not None:
        written += write(radii, summaries, out, warnings)
    if html is not None:
        written.append(write_page(radii, summaries, html, warnings))
    console = wide_console()
    for heading, noted in headed_tables(radii, summaries, parts(summaries)):
        if heading:
            console.rule(Text(heading), align="left")
        for table, note in noted:
            print_table(table, note, console)
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)
    here = [path for path in written if path.parent == out or path == html]
    for path in here:
        typer.echo(f"wrote {path}")
    if more := len(written) - len(here):
        typer.echo(f"wrote {more} more files, into folders of {out}")
