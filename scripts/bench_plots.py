"""Draw the results that `make bench KEEP=1` kept in docs/benchmarks, as SVG beside them. Part of `make pictures`.

matplotlib is in an environment of its own, in which this module runs itself again.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "benchmarks"
FIRST, SECOND = "#1f6feb", "#8b949e"
_STYLE: Mapping[str, Any] = {
    "svg.hashsalt": "mcp-workflows",  # the same numbers make the same file
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
Lines = Sequence[Mapping[str, Any]]


def main() -> None:
    """Draw all pictures; the first time, install matplotlib."""
    if "--draw" in sys.argv:
        draw()
        return
    from tests.support.environments import MATPLOTLIB, python_of  # noqa: PLC0415  # the environment of matplotlib has not our packages

    subprocess.run([str(python_of("pictures", MATPLOTLIB)), __file__, "--draw"], check=True)
    print(f"drawn: {', '.join(sorted(each.name for each in FOLDER.glob('*.svg')))} in docs/benchmarks")


def draw() -> None:
    """Draw all pictures.

    Raises:
        KeyError: the results lack what a picture shows.
    """
    from matplotlib import pyplot  # noqa: PLC0415  # see above

    pyplot.rcParams.update(_STYLE)
    lines: Lines = json.loads((FOLDER / "temporal.json").read_text())["lines"]
    _ratios(pyplot, lines)
    _by_count(
        pyplot, "latency", "a create, store on disk", "clients at once", "ms", _series(lines, "r", "a create in ms")
    )
    _by_count(pyplot, "memory", "memory of the process", "waiting tasks", "MiB", _series(lines, "e", "MiB"))
    calls = _series(lines, "d", "engine calls/s for")
    _by_count(pyplot, "engine-calls", "calls of the engine", "waiting tasks with a poller each", "calls/s", calls)


def _ratios(pyplot: Any, lines: Lines) -> None:
    """Each ratio with its interval, and the target."""
    found = [line for line in lines if line["ratio"]][::-1]
    figure, axes = pyplot.subplots(figsize=(8, 0.42 * len(found) + 0.9))
    for at, line in enumerate(found):
        ratio = line["ratio"]
        axes.plot([ratio["low"], ratio["high"]], [at, at], color=FIRST, linewidth=2)
        axes.plot(ratio["median"], at, "o", color=FIRST)
        if line["target"]:
            axes.plot(float(line["target"].split()[1]), at, "|", color="#d1242f", markersize=14)
    axes.axvline(1, color=SECOND, linewidth=0.8)
    axes.set_yticks(
        range(len(found)), [f"{line['goal']}: {line['what'].partition(', the median of')[0]}" for line in found]
    )
    axes.set_xlabel("ours to theirs: median of paired rounds with its 95 % interval; red: the target")
    _save(pyplot, figure, "ratios")


def _by_count(pyplot: Any, name: str, title: str, x: str, y: str, series: Mapping[str, Mapping[str, float]]) -> None:
    """One value over the number of clients or tasks."""
    figure, axes = pyplot.subplots(figsize=(5, 3))
    axes.set_xscale("log")
    for (label, points), color in zip(series.items(), (FIRST, SECOND)[: len(series)], strict=True):
        counts = [int(count) for count in points]
        axes.plot(counts, list(points.values()), "o-", color=color, label=label)
        ticks = [a for a, b in zip(counts, [*counts[1:], math.inf], strict=True) if b / a > 3]  # others have no room
        axes.set_xticks(ticks, [f"{count:,}" for count in ticks])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_title(title, loc="left")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if len(series) > 1:
        axes.legend(frameon=False)
    _save(pyplot, figure, name)


def _series(lines: Lines, goal: str, beginning: str) -> Mapping[str, Mapping[str, float]]:
    found = [line for line in lines if line["goal"] == goal and line["series"] and line["what"].startswith(beginning)]
    if not found:
        raise KeyError(f"no line of goal ({goal}) begins with {beginning!r}")
    return {_label(line["what"]): line["series"] for line in found}


def _label(what: str) -> str:
    """p50 and p99, tasks and listeners."""
    return next((word for word in ("p50", "p99", "listeners") if word in what), "tasks")


def _save(pyplot: Any, figure: Any, name: str) -> None:
    figure.savefig(FOLDER / f"{name}.svg", bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)


if __name__ == "__main__":
    main()
