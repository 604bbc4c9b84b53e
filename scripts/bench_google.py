"""Goals (m) and (n) of `make bench ENGINE=google`: Google's quotas, and how soon an end is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from scripts.bench_goals import Line, beside, exactly, milliseconds, seconds
from scripts.bench_google_place import sidecar, stub
from scripts.bench_place import Place
from tests.support.child_processes import Command
from tests.support.local_engines import SAMPLES, GoogleLocal

_SECONDS = {"type": "object", "properties": {"seconds": {"type": "number"}}, "required": ["seconds"]}
_SOURCE = SAMPLES / "conformance" / "google" / "slow_compute.workflow.yaml"
BRIEF = "slow_compute"


def followed(place: Place) -> Iterator[Line]:
    """(m) 10,000 running executions with a listener each."""
    with stub(place) as control, place.fast_folder() as folder:
        found = place.run("bench_google_load", control.address.rpartition(":")[2], str(folder))
    yield beside("m", "executions with a listener each; seconds", f"{found['tasks']}; {found['seconds']:.0f}")
    for api, seen in found["apis"].items():
        yield _kept(api, seen)
    yield exactly("m", f"ends that no listener was told of, of {found['ends']}", found["ends_untold"])
    yield beside("m", "from an end to its listener, p50 / p99 / max", seconds(found["end"]))
    yield beside("m", "age of what Google last told of each, p50 / p99 / max", seconds(found["age"]))
    yield beside("m", "told as pollIntervalMs; cores in use", f"{found['poll_interval_ms']}; {found['cores']:.2f}")
    yield beside("m", "event loop lag, p50 / p99 / max", milliseconds(found["lag"]))
    yield beside("m", "memory of each task with its listener", f"{found['memory'] / 1024:.1f} kB")


def _kept(api: str, seen: Mapping[str, float]) -> Line:
    what = f"{api}/min (its busiest minute)"
    measured, target = f"{seen['per_minute']:.0f} ({seen['busiest']:.0f})", f"<= {seen['quota']:.0f}"
    met = seen["busiest"] <= seen["quota"]
    return Line(goal="m", what=what, measured=measured, target=target, met=met, surely_missed=not met)


def notified(place: Place) -> Iterator[Line]:
    """(n) From an end to its notification, on the local engine over HTTP."""
    engine = GoogleLocal(place.folder)
    local = [*engine.command().argv, "--deploy", str(_deployable(place.folder))]
    started = Command(name="google engine", argv=local, cwd=place.folder, env=engine.environment())
    tools = {BRIEF: {"workflow": BRIEF, "input": _SECONDS}}
    with (
        place.running(started, engine.answers),
        sidecar(place, place.folder / "google-tasks.db", engine.address, tools) as running,
    ):
        found = place.run("bench_google_notified", str(running.port), engine.address)
    yield beside("n", f"end to notification of {found['count']} executions, p50 / p99 / max", seconds(found))
    yield exactly("n", "ends that were not told", found["missed"])


def _deployable(folder: Path) -> Path:
    """The workflow in a file that is named like it."""
    file = folder / f"{BRIEF}.yaml"
    file.write_text(_SOURCE.read_text())
    return file
