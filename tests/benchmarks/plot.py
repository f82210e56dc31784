"""The picture: how fast a burst leaves, and what an idle tick costs, both on logarithmic axes.

The two stand one above the other, and the letters are large, so that it can be read on a telephone.
Colours are Okabe and Ito's, which colour-blind people can tell apart; each line has a marker of its own, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import bursts, cases
from .results import BATCHED, FLOOR, LOOP, OLD, OURS, Results

_STYLE: dict[str, dict[str, Any]] = {
    OURS: {"color": "#0072B2", "marker": "o", "linewidth": 2.4, "zorder": 3},
    OLD: {"color": "#D55E00", "marker": "s"},
    LOOP: {"color": "#009E73", "marker": "^"},
    BATCHED: {"color": "#CC79A7", "marker": "v"},
    FLOOR: {"color": "#555555", "marker": "D", "linestyle": "--"},
}


#: inches, points, and dots an inch: on a telephone of 380 pixels the letters are 10 pixels high
WIDTH, HEIGHT, FONT_SIZE, DPI = 5.4, 7.6, 11, 150


#: case, title, and what stands at the axes
_PANELS = (
    (bursts.BURST, "Burst: higher is better", "entries due at once, log", "messages/s, log"),
    (cases.IDLE, "Idle tick: lower is better", "entries stored, log", "milliseconds, log"),
)


def draw(results: Results, path: Path) -> bool:
    """Write the PNG, of the cases that were run; tell whether there are any. An older file is removed."""
    panels = [panel for panel in _PANELS if any(results.series(panel[0], subject)[0] for subject in _STYLE)]
    path.unlink(missing_ok=True)
    if not panels:
        return False
    # here, as it takes half a second, and each process of the test suite imports this module
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams.update({"font.size": FONT_SIZE, "axes.spines.top": False, "axes.spines.right": False})
    figure = Figure(figsize=(WIDTH, HEIGHT * len(panels) / len(_PANELS)), layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for one, panel in zip(axes, panels, strict=True):
        _panel(one, results, *panel)
    by_subject = {line.get_label(): line for one in axes for line in one.get_lines()}
    shown = [subject for subject in _STYLE if subject in by_subject]
    lines = [by_subject[subject] for subject in shown]
    figure.legend(lines, shown, loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(path, dpi=DPI)
    return True


def _panel(axes: Any, results: Results, case: str, title: str, x_label: str, y_label: str) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator

    axes.set_title(title, loc="left", fontweight="bold")
    axes.set(xscale="log", yscale="log", xlabel=x_label, ylabel=y_label)
    lines = {subject: results.series(case, subject) for subject in _STYLE}
    drawn = {subject: line for subject, line in lines.items() if line[0]}
    values = [value for _, line in drawn.values() for value in line]
    low, high = min(values) / 2, max(values) * 2
    label_gap = (high / low) ** 0.05
    label_at = 0.0
    for subject, (sizes, line) in sorted(drawn.items(), key=lambda item: item[1][1][-1]):
        axes.plot(sizes, line, markersize=6, label=subject, **_STYLE[subject])
        label_at = max(line[-1], label_at * label_gap)  # labels of lines that meet stand above each other
        _label(axes, sizes[-1], label_at, line[-1], _STYLE[subject]["color"])
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.set_xticks(results.sizes(case))
    plain = FuncFormatter(lambda value, _: f"{value:,.10g}")
    axes.xaxis.set_major_formatter(plain)
    axes.yaxis.set_major_formatter(plain)
    axes.minorticks_off()
    axes.grid(visible=True, color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)


def _label(axes: Any, x: float, y: float, value: float, color: str) -> None:
    text = f"{value:,.0f}" if value >= 100 else f"{value:.2g}"
    place = {"xytext": (8, 0), "textcoords": "offset points", "va": "center"}
    axes.annotate(text, (x, y), fontsize=FONT_SIZE, color=color, **place)
