"""Writes the reference parts of api.md and cli.md from docstrings and from the command line itself.

    python docs/make.py

What stands above the marker line in these two pages is written by hand and stays.
"""

import ast
import importlib
import inspect
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
MARKER = (
    "<!-- Below this line: written by docs/make.py. Change the docstrings and run it again. -->"
)
FENCE = "python-console"  # not "pycon", which ruff would format: the docstrings are the source

SECTIONS = {
    "Propagation": ("Propagator", "Gaussian", "check", "fix"),
    "Settings": ("Settings", "PAPER", "REFERENCE"),
    "Radius and loss": ("estimated_radius", "top_two_probability", "RadiusLoss"),
    "Estimators": ("margin", "Margin", "ibp", "Box"),
    "Inside a network": ("inspect.exhibits", "inspect.write", "inspect.layer_table"),
    "Certification": ("certify", "Certificate", "predict"),
    "Rules": ("rule", "elementwise"),
    "Layers": ("Normalize", "ActNorm", "HermiteActivation"),
    "The bound behind the correlation factor": ("inflation", "decorrelated_bound"),
    "Errors": ("CovpropError", "InvalidInput", "UnsupportedModel"),
    "Models, data, methods, runs": (
        *("models.build", "data.load", "data.batches", "methods.build", "train.load"),
        *("train.train", "run.Run"),
    ),
    "Noisy labels": (
        *("data.label_noise.corrupt", "noisy.build", "noisy.report.judge"),
        *("noisy.rate.estimate_rate", "noisy.suspects.find", "noisy.suspects.read_csv"),
        "noisy.cleanlab.compare",
    ),
}

INTRODUCTIONS = {
    "Radius and loss": "covprop.radius",
    "Estimators": "covprop.estimate",
    "Certification": "covprop.certify.smooth",
    "The bound behind the correlation factor": "covprop.bound",
    "Noisy labels": "covprop.noisy",
}
"""Sections that open with the docstring of a module, where the formulas are."""


def lookup(name: str) -> tuple[Any, Any]:
    """A public thing and the module it is reached through."""
    module, _, last = f"covprop.{name}".rpartition(".")
    found = importlib.import_module(module)
    return getattr(found, last), found


def attribute_docs(source: str) -> dict[str, tuple[str, str]]:
    """Names assigned in a class or module body that have a docstring below: (value, docstring)."""
    tree = ast.parse(source)
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else tree.body
    found = {}
    for node, after in itertools.pairwise(body):
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        documented = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if documented and targets and isinstance(targets[0], ast.Name):
            value = getattr(node, "value", None)
            text = inspect.cleandoc(str(after.value.value))
            found[targets[0].id] = (ast.unparse(value) if value else "", text)
    return found


def blocks(text: str) -> Iterator[tuple[bool, str]]:
    """A docstring cut into (indented, text) parts."""
    for indented, lines in _runs(text.splitlines()):
        part = "\n".join(lines).strip("\n")
        if part.strip():
            yield indented, inspect.cleandoc(part) if indented else part


def _runs(lines: list[str]) -> Iterator[tuple[bool, list[str]]]:
    current: list[str] = []
    state = False
    for line in lines:
        indented = line.startswith("    ") if line.strip() else state
        if indented != state and current:
            yield state, current
            current = []
        state = indented
        current.append(line)
    yield state, current


def argument_list(text: str) -> str:
    """`name: what it is` lines, with their continuations, as a Markdown list."""
    joined = re.sub(r"\n {4,}", " ", text)
    return re.sub(r"^(\w[\w, ]*): ", r"- `\1`: ", joined, flags=re.M)


def markdown(docstring: str) -> str:
    """A docstring as Markdown: arguments as a list, examples and formulas as blocks."""
    out: list[str] = []
    heading = ""
    for indented, text in blocks(re.sub(r" +# doctest: .*", "", docstring)):
        if indented and heading == "Args":
            out.append(argument_list(text))
        elif indented:
            out.append(f"```{FENCE if text.startswith('>>>') else 'text'}\n{text}\n```")
        else:
            text, heading = _heading(text)
            out.append(text)
    return "\n\n".join(part for part in out if part)


def _heading(text: str) -> tuple[str, str]:
    """Text with a trailing `Args:` or `Example:` line made bold, and which one it was."""
    found = re.search(r"(^|\n)(Args|Example|Returns)(:.*)$", text)
    # A bare run of >>> lines at the left margin is an example too.
    if found is None and ">>>" in text:
        before, _, example = text.partition(">>>")
        return f"{before.strip()}\n\n```{FENCE}\n>>>{example}\n```".strip(), ""
    if found is None:
        return text, ""
    word = "Arguments" if found[2] == "Args" else found[2]
    return f"{text[: found.start()].strip()}\n\n**{word}**{found[3]}".strip(), found[2]


def annotation(given: Any) -> str:
    """A type as the source writes it, short."""
    if given is inspect.Parameter.empty:
        return ""
    text = given if isinstance(given, str) else inspect.formatannotation(given)
    text = re.sub(r"ForwardRef\('([^']*)'\)", r"\1", text)
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", text)


def signature(name: str, thing: Any) -> str:
    """`name(parameters) -> result`, one parameter a line where it is long."""
    given = inspect.signature(thing)
    words: list[str] = []
    for p in given.parameters.values():
        if p.name == "self":
            continue
        if p.kind is p.KEYWORD_ONLY and not any(word.startswith("*") for word in words):
            words.append("*")
        word = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "") + p.name
        shown = annotation(p.annotation)
        word += f": {shown}" if shown else ""
        words.append(word if p.default is p.empty else f"{word} = {default_value(p.default)}")
    result = "" if isinstance(thing, type) else annotation(given.return_annotation)
    arrow = f" -> {result}" if result else ""
    line = f"{name}({', '.join(words)}){arrow}"
    if len(line) <= 92:
        return line
    return "\n".join([f"{name}(", *(f"    {word}," for word in words), f"){arrow}"])


def default_value(value: Any) -> str:
    """A default as a caller would write it."""
    import covprop

    for name in ("PAPER", "REFERENCE"):
        if value is getattr(covprop, name):
            return name
    return getattr(value, "__name__", None) or repr(value)


def methods(thing: type) -> Iterator[str]:
    """The documented methods and properties of a class."""
    for name, member in vars(thing).items():
        function = member.fget if isinstance(member, property) else member
        doc = inspect.getdoc(function) if callable(function) else None
        if name.startswith("_") or not doc or name in ("forward", "extra_repr"):
            continue
        shown = name if isinstance(member, property) else signature(name, function)
        yield f"#### `{' '.join(shown.split())}`\n\n{markdown(doc)}"


def entry(name: str) -> str:
    """One public name as Markdown."""
    thing, module = lookup(name)
    parts = [f"### `covprop.{name}`"]
    if not (inspect.isclass(thing) or inspect.isroutine(thing)):
        source = inspect.getmodule(type(thing)) or module
        parts.append(attribute_docs(inspect.getsource(source))[name][1])
        return "\n\n".join(parts)
    if not (inspect.isclass(thing) and issubclass(thing, Exception)):
        parts.append(f"```text\n{signature(name.rpartition('.')[2], thing)}\n```")
    parts.append(markdown(inspect.getdoc(thing) or ""))
    if inspect.isclass(thing):
        fields = attribute_docs(inspect.getsource(thing))
        items = [
            f"- `{key} = {value}`: {' '.join(doc.split())}" for key, (value, doc) in fields.items()
        ]
        parts += ["\n".join(items), *methods(thing)]
    return "\n\n".join(part for part in parts if part)


def api() -> str:
    """The reference of every public name."""
    import covprop

    listed = [name for names in SECTIONS.values() for name in names]
    missing = set(covprop.__all__) - {"__version__"} - set(listed)
    if missing:
        raise SystemExit(f"docs/make.py: SECTIONS lacks {', '.join(sorted(missing))}")
    parts = []
    for title, names in SECTIONS.items():
        parts.append(f"## {title}")
        if title in INTRODUCTIONS:
            parts.append(
                markdown(inspect.getdoc(importlib.import_module(INTRODUCTIONS[title])) or "")
            )
        parts += [entry(name) for name in names]
    return "\n\n".join(parts) + "\n"


def cli() -> str:
    """Every verb: its help text, arguments and options."""
    import typer

    from covprop.cli import app

    root: Any = typer.main.get_command(app)
    parts = []
    for name, command in root.commands.items():
        for verb, leaf in _leaves(name, command):
            parts.append(f"## covprop {verb}\n\n{_verb(leaf)}")
    return "\n\n".join(parts) + "\n"


def _leaves(name: str, command: Any) -> list[tuple[str, Any]]:
    nested = getattr(command, "commands", None)
    if nested is None:
        return [(name, command)]
    return [leaf for key, sub in nested.items() for leaf in _leaves(f"{name} {key}", sub)]


def _verb(command: Any) -> str:
    paragraphs = []
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        kept = paragraph.removeprefix("\b\n")
        paragraphs.append(f"```console\n{kept}\n```" if kept != paragraph else kept)
    rows = ["| | | default |", "|---|---|---|"]
    for parameter in command.params:
        if parameter.name == "help":
            continue
        argument = parameter.param_type_name == "argument"
        spelled = [parameter.metavar or parameter.name.upper()] if argument else parameter.opts
        names = ", ".join([*spelled, *parameter.secondary_opts]).replace("|", "\\|")
        rows.append(f"| `{names}` | {parameter.help or ''} | {_default(parameter)} |")
    return "\n\n".join([*paragraphs, "\n".join(rows)])


def _default(parameter: Any) -> str:
    shown = parameter.show_default
    value = shown if isinstance(shown, str) else parameter.default
    if parameter.required:
        return "required"
    empty = value is None or value is False or value == [] or callable(value)
    return "" if empty else str(value).replace("|", "\\|")


def page(name: str, generated: str) -> str:
    """A page with its generated part replaced."""
    by_hand, marker, _ = (DOCS / name).read_text(encoding="utf-8").partition(MARKER)
    if not marker:
        raise SystemExit(f"docs/{name} has lost its marker line:\n{MARKER}")
    return f"{by_hand}{MARKER}\n\n{generated}"


def pages() -> dict[str, str]:
    """Name -> text of both generated pages."""
    os.environ["COLUMNS"] = "100"  # help texts do not depend on the terminal
    return {"api.md": page("api.md", api()), "cli.md": page("cli.md", cli())}


if __name__ == "__main__":
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")
        print(f"wrote docs/{name}")
