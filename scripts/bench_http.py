"""Goals (t) and (u) of `make bench ENGINE=http`: GitHub's limits, and the CPU of a look."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Final

from scripts.bench_goals import Line, beside, exactly, milliseconds, seconds
from scripts.bench_http_load import Control
from scripts.bench_http_stub import A_MINUTE, AN_HOUR
from scripts.bench_place import Place
from tests.support.child_processes import Command, free_port
from tests.support.environments import ROOT

SHARE: Final = 0.5  # of GitHub's limit, as shipped
RATIO: Final = 1.2


@contextmanager
def stub(place: Place) -> Generator[Control]:
    """Run the stub of GitHub, with nothing in it."""
    port = free_port()
    control = Control(port)
    argv = [sys.executable, "-m", "scripts.bench_http_stub", str(port)]
    with place.running(Command(name="github stub", argv=argv, cwd=ROOT, env={}), control.answers):
        yield control


def followed(place: Place) -> Iterator[Line]:
    """(t) 1,000 running executions with a listener each."""
    with stub(place) as control, place.fast_folder() as folder:
        found = place.run("bench_http_load", control.url.rpartition(":")[2], str(folder))
    yield beside("t", "executions with a listener each; seconds", f"{found['tasks']}; {found['whole']:.0f}")
    yield _within("calls of an hour: those of this run, and then at its rate", found["an_hour"], AN_HOUR * SHARE)
    yield _within("calls in the busiest minute", found["busiest_minute"], A_MINUTE * SHARE)
    yield exactly("t", "calls that GitHub refused (403)", sum(found["refused"].values()))
    yield exactly("t", f"ends that no listener was told of, of {found['ends']}", found["ends_untold"])
    yield beside("t", "from an end to its listener, p50 / p99 / max", seconds(found["end"]))
    yield exactly("t", f"questions that no listener was told of, of {found['questions']}", found["questions_untold"])
    yield beside("t", "from a question to its listener, p50 / p99 / max", seconds(found["question"]))
    yield beside("t", "age of the last look that clients are told, p50 / p99 / max", seconds(found["age"]))
    yield beside("t", "age of the last list or look, p50 / p99 / max", seconds(found["listed"]))
    yield beside("t", "told as pollIntervalMs; cores in use", f"{found['poll_interval_ms']}; {found['cores']:.2f}")
    yield beside("t", "event loop lag, p50 / p99 / max", milliseconds(found["lag"]))


def _within(what: str, measured: float, most: float) -> Line:
    met = measured <= most
    text = f"<= {most:.0f}"
    return Line(goal="t", what=what, measured=f"{measured:.0f}", target=text, met=met, surely_missed=not met)


def looked(place: Place) -> Iterator[Line]:
    """(u) The CPU of a look, against a bare client's."""
    with stub(place) as control:
        found = place.run("bench_http_look", control.url.rpartition(":")[2])
    first, last = found["ratio_interval"]
    yield Line(
        goal="u",
        what="CPU of a look, to the same requests of a bare client",
        measured=f"{found['ratio']:.2f} ({first:.2f}-{last:.2f}), {found['look_ms']:.1f} to {found['bare_ms']:.1f} ms",
        target=f"<= {RATIO}",
        met=found["ratio"] <= RATIO,
        surely_missed=first > RATIO,
    )
