"""The figures of a report as PNG and SVG: curves, p_A, estimated against certified radius."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from covprop.report.style import OUTCOMES, any_letters, line, shorten
from covprop.report.summary import P_NAMES, Agreement, Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.labelsize": 9,
    "legend.fontsize": 8,
    "lines.scale_dashes": False,
    "svg.hashsalt": "covprop",  # the same report gives the same bytes
    "svg.fonttype": "path",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666666",
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "grid.color": "#E4E6EA",
    "grid.linewidth": 0.7,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
}
_KINDS = (("wrong", "#D55E00", "x"), ("abstained", "#888888", "s"), ("correct", "#0072B2", "o"))


def figures(summaries: Sequence[Summary]) -> dict[str, bytes]:
    """Every figure by file name, for example `curves.png` and `curves.svg`."""
    import matplotlib

    with matplotlib.rc_context(RC), any_letters():
        made = {"curves": _curves(summaries)}
        if any(s.p_shares for s in summaries):
            made["p_a"] = _p_bars([s for s in summaries if s.p_shares])
        compared = [(s, a) for s in summaries for a in s.agreements]
        if compared:
            made["estimated"] = _scatters(compared)
        return {
            f"{name}.{kind}": _encode(figure, kind)
            for name, figure in made.items()
            for kind in ("png", "svg")
        }


def _encode(figure: "Figure", kind: str) -> bytes:
    """The figure as a file. Its parts find their places once: that takes as long as drawing."""
    buffer = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {}
    figure.savefig(buffer, format=kind, dpi=200, metadata=metadata)
    figure.set_layout_engine("none")
    return buffer.getvalue()


def new_figure(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure  # not pyplot: no window, no global state

    return Figure(figsize=(width, height), layout="constrained")


def _curves(summaries: Sequence[Summary]) -> "Figure":
    many = len(summaries) > 6
    figure = new_figure(6.2, 4.0 + (0.2 * len(summaries) if many else 0))
    axes = figure.subplots()
    lines = []
    for index, summary in enumerate(summaries):
        look, curve = line(index), summary.curve
        # accuracy[k] holds up to radius[k]; after the last radius it drops to 0.
        x = [*curve.radius, curve.radius[-1]]
        (drawn,) = axes.plot(
            x,
            [*curve.accuracy, 0.0],
            drawstyle="steps-pre",
            color=look.light,
            dashes=look.dash or (None, None),
            linewidth=1.7,
        )
        axes.fill_between(
            x,
            [*curve.low, 0.0],
            [*curve.high, 0.0],
            step="pre",
            color=look.light,
            alpha=0.13,
            linewidth=0,
        )
        lines.append(drawn)
    axes.set(
        xlabel=r"certified $\ell_2$ radius $r$",
        ylabel="certified accuracy",
        ylim=(0, 1.0),
        xlim=(0, max(s.curve.radius[-1] for s in summaries) * 1.03 or 1.0),
    )
    axes.yaxis.set_major_formatter(lambda y, _: f"{100 * y:.0f} %")
    axes.grid(True)
    labels = [str(i) for i in range(len(lines))]
    if many:
        legend = figure.legend(lines, labels, frameon=False, loc="outside lower center")
    else:
        legend = axes.legend(lines, labels, frameon=False, loc="upper right")
    for text, summary in zip(legend.get_texts(), summaries, strict=True):
        _set_plain(text, f"{shorten(summary.certification.name)}  (ACR {summary.acr.value:.3f})")
    return figure


def _set_plain(text: object, value: str) -> None:
    """Set a text as it stands: `$` begins no formula, a leading `_` hides nothing."""
    text.set_parse_math(False)  # type: ignore[attr-defined]
    text.set_text(value)  # type: ignore[attr-defined]


def _p_bars(summaries: Sequence[Summary]) -> "Figure":
    from matplotlib.patches import Patch

    figure = new_figure(6.2, 1.1 + 0.36 * len(summaries))
    axes = figure.subplots()
    beside: dict[str, Any] = {
        "transform": axes.get_yaxis_transform(),
        "ha": "right",
        "va": "center",
    }
    for row, summary in enumerate(summaries):
        name = shorten(summary.certification.name, 30)
        axes.text(-0.015, row, name, fontsize=8, parse_math=False, **beside)
        left = 0.0
        for share, colour in zip(summary.p_shares or (), OUTCOMES, strict=True):
            axes.barh(row, share, left=left, color=colour, height=0.62, edgecolor="white")
            if share >= 0.05:
                ink = "white" if colour in (*OUTCOMES[-2:], OUTCOMES[0]) else "#222222"
                axes.text(
                    left + share / 2, row, f"{100 * share:.0f}", color=ink, ha="center", va="center"
                )
            left += share
    axes.set(xlim=(0, 1), ylim=(len(summaries) - 0.5, -0.5), xlabel="share of images")
    axes.xaxis.set_major_formatter(lambda x, _: f"{100 * x:.0f} %")
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    labels = [name.replace("-", "–") for name in P_NAMES]
    figure.legend(
        [Patch(color=colour) for colour in OUTCOMES],
        labels,
        loc="outside upper center",
        ncols=len(labels),
        frameon=False,
        handlelength=1,
        columnspacing=1.0,
        title="lower bound of $p_A$ (correct images)",
        title_fontsize=8,
    )
    return figure


def _scatters(compared: Sequence[tuple[Summary, Agreement]]) -> "Figure":
    across = min(3, len(compared))
    down = -(-len(compared) // across)
    figure = new_figure(3.1 * across + 0.4, 3.2 * down + 0.3)
    grid = figure.subplots(down, across, squeeze=False)
    for axes in grid.flat[len(compared) :]:
        axes.set_visible(False)
    for axes, (summary, agreement) in zip(grid.flat, compared, strict=False):
        _scatter(axes, summary, agreement)
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False)
    return figure


def _scatter(axes: "Axes", summary: Summary, agreement: Agreement) -> None:
    for kind, (label, colour, marker) in enumerate(_KINDS):
        chosen = agreement.kind == kind
        axes.scatter(
            agreement.certified[chosen],
            agreement.estimated[chosen],
            s=12,
            marker=marker,
            color=colour,
            alpha=0.65,
            linewidths=0.8 if marker == "x" else 0,
            label=label,
        )
    end = float(agreement.certified.max(initial=0.0)) * 1.05 or 1.0
    axes.plot([0, end], [0, end], color="#999999", linewidth=0.8, dashes=(4, 3), label="equal")
    axes.set(xlabel="certified radius", ylabel="estimated radius", xlim=(-0.02 * end, end))
    axes.grid(True)
    title = axes.set_title("", fontsize=8, loc="left")
    _set_plain(
        title,
        f"{shorten(summary.certification.name, 34)}\n{shorten(agreement.estimator, 20)}: "
        f"Pearson {agreement.pearson:.2f}, Spearman {agreement.spearman:.2f}",
    )
