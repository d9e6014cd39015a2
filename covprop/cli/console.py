"""Where tables are printed."""

from rich.console import Console


def wide_console(width: int = 160) -> Console:
    """The terminal; a file or a pipe has no width of its own and gets this one."""
    console = Console()
    return console if console.is_terminal else Console(width=width)
