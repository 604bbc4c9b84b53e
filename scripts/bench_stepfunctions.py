"""Goals (h) to (l) of `make bench ENGINE=stepfunctions`: AWS's quotas, how soon is told what, and another server."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import boto3

from scripts import bench_stepfunctions_calls as peers
from scripts.bench_goals import Line, beside, exactly, milliseconds, seconds
from scripts.bench_place import Place, listens
from scripts.bench_rounds import interval, quantile
from scripts.bench_stepfunctions_account import BRIEF, REGION
from scripts.bench_stepfunctions_calls import Kind, Round
from scripts.bench_stepfunctions_control import CREDENTIALS, Control
from scripts.bench_stepfunctions_sidecar import sidecar
from tests.support.child_processes import Command, free_port
from tests.support.environments import ROOT
from tests.support.local_engines import StepFunctionsLocal

ROUNDS = 3  # of 15 calls at once, on each side
_DEFINITION = {
    "StartAt": "Packing",
    "States": {
        "Packing": {"Type": "Wait", "SecondsPath": "$.seconds", "Next": "Packed"},
        "Packed": {"Type": "Pass", "Result": {"total": 1}, "End": True},
    },
}
_ENDS = {"source": ["aws.states"], "detail-type": ["Step Functions Execution Status Change"]}
_SAYS_NOTHING = "; nothing tells of one but a look"


def followed(place: Place) -> Iterator[Line]:
    """(h) 10,000 running executions with a listener each."""
    yield from _followed("h", place)


def hinted(place: Place) -> Iterator[Line]:
    """(i) Likewise, with EventBridge's events in a queue."""
    yield from _followed("i", place, "hints")


def _followed(goal: str, place: Place, *hints: str) -> Iterator[Line]:
    with _stub(place) as control, place.fast_folder() as folder:
        found = place.run("bench_stepfunctions_load", "followed", str(control.port), str(folder), *hints)
    with_hints = ", with hints" if hints else ""
    yield beside(
        goal, f"executions with a listener each{with_hints}; seconds", f"{found['tasks']}; {found['seconds']:.0f}"
    )
    for api, seen in found["apis"].items():
        yield _kept(goal, api, seen)
        yield exactly(goal, f"{api} calls that half of AWS's quota would refuse", seen["refused"])
    yield exactly(goal, f"ends that no listener was told of, of {found['ends']}", found["ends_untold"])
    yield beside(goal, "from an end to its listener, p50 / p99 / max", seconds(found["end"]))
    what = f"questions that no listener was told of meanwhile, of {found['questions']}"
    untold = found["questions_untold"]
    yield exactly(goal, what, untold) if hints else beside(goal, what + _SAYS_NOTHING, str(untold))
    if hints:
        yield beside(goal, "from a question to its listener, p50 / p99 / max", seconds(found["question"]))
    yield beside(goal, "age of what AWS last told of each, p50 / p99 / max", seconds(found["age"]))
    yield beside(goal, "told as pollIntervalMs; cores in use", f"{found['poll_interval_ms']}; {found['cores']:.2f}")
    yield beside(goal, "event loop lag, p50 / p99 / max", milliseconds(found["lag"]))


def _kept(goal: str, api: str, seen: Mapping[str, float]) -> Line:
    rate, refill, bucket = seen["per_second"], seen["refill"], seen["bucket"]
    what = f"{api}/s (its busiest second)"
    measured, target = f"{rate:.1f} ({seen['busiest']:.0f})", f"<= {refill:g} ({bucket + refill:g})"
    met = rate <= refill and seen["busiest"] <= bucket + refill
    return Line(goal=goal, what=what, measured=measured, target=target, met=met, surely_missed=not met)


def notified(place: Place) -> Iterator[Line]:
    """(j) From an end to its notification, on the local engine over HTTP."""
    engine = StepFunctionsLocal(place.folder)
    place.launch(engine.command(), engine.answers)
    _client(engine.address, "stepfunctions").create_state_machine(
        name=BRIEF, definition=json.dumps(_DEFINITION), roleArn="arn:aws:iam::123456789012:role/bench"
    )
    for words, queue in (("without hints", lambda: None), ("with hints", lambda: _events(engine.address))):
        with _served(place, engine.address, queue()) as port:
            found = place.run("bench_stepfunctions_notified", str(port), engine.address)
        what = f"end to notification of {found['count']} executions, {words}, p50 / p99 / max"
        yield beside("j", what, seconds(found))
        yield exactly("j", "ends that were not told", found["missed"])


@contextmanager
def _served(place: Place, endpoint: str, queue_url: str | None) -> Generator[int]:
    """The sidecar on HTTP; its port."""
    port, name = free_port(), "hinted" if queue_url else "unhinted"
    argv = sidecar(place.folder, name, "--http", f"127.0.0.1:{port}", endpoint=endpoint, queue_url=queue_url)
    command = Command(name=f"{name} sidecar", argv=argv, cwd=ROOT, env=CREDENTIALS)
    with place.running(command, lambda: listens(port)):
        yield port


def _events(endpoint: str) -> str:
    """The URL of a queue that EventBridge tells of all ends, as docs/stepfunctions-events.md has it."""
    sqs, events = _client(endpoint, "sqs"), _client(endpoint, "events")
    url: str = sqs.create_queue(QueueName="bench")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    events.put_rule(Name="bench", EventPattern=json.dumps(_ENDS))
    events.put_targets(Rule="bench", Targets=[{"Id": "queue", "Arn": arn}])
    return url


def _client(endpoint: str, service: str) -> Any:
    """Any: boto3's clients have no types."""
    session: Any = boto3.Session("test", "test", region_name=REGION)
    return session.client(service, endpoint_url=endpoint)


def concurrent(place: Place) -> Iterator[Line]:
    """(k) The event loop, while the adapter waits for many looks at once."""
    with _stub(place) as control:
        found = place.run("bench_stepfunctions_load", "concurrent", str(control.port))
    what = f"event loop lag under {found['concurrent']} looks at once, p50 / p99 / max"
    yield beside("k", what, milliseconds(found["lag"]))
    yield beside("k", "the same without any, to compare", milliseconds(found["idle"]))
    yield beside("k", "looks/s (two calls of 20 ms each, 16 connections)", f"{found['looks']:.0f}")


def compared(place: Place) -> Iterator[Line]:
    """(l) 15 plain calls at once, ours and AWS Labs' server, on the same stub."""
    with _stub(place) as control, place.fast_folder() as folder:
        control.tell(latency=peers.LATENCY)
        with peers.ours(folder, control) as us, peers.theirs(folder, control) as them:
            yield from _rounds(us, them, control)
            for what, count in _COUNTS.items():
                yield _both(what, str(mine := count(us, control)), str(count(them, control)), "0", met=not mine)


_COUNTS: Mapping[str, Callable[[Kind, Control], int]] = {
    f"second starts, {peers.CALLS} clients call again after 1 s": peers.started_twice_by_clients,
    f"second starts, {peers.CALLS} replies of AWS are lost": peers.started_twice_by_servers,
    f"failures told as successes, of {peers.CALLS}": lambda kind, _: peers.failures_told_as_successes(kind),
}


def _rounds(us: Kind, them: Kind, control: Control) -> Iterator[Line]:
    """Alternating, as busy moments hurt both."""
    rounds = [(peers.together(us, control), peers.together(them, control)) for _ in range(ROUNDS)]
    mine, others = [pair[0] for pair in rounds], [pair[1] for pair in rounds]
    ratio = interval([max(ours.pings) / max(theirs.pings) for ours, theirs in rounds])
    met = ratio.median <= 1
    calls = f"{peers.CALLS} calls of {peers.SECONDS:g} s at once"
    yield _both(f"{calls}: ping, p50 / p99 / max", _pings(mine), _pings(others))
    yield _both("longest ping, ours to theirs", str(ratio), "", "<= 1.00", met=met)
    yield _both("engine calls/s, by API", _apis(mine), _apis(others))
    yield _both("busiest second of DescribeExecution (AWS: 15/s for all)", _busiest(mine), _busiest(others))
    yield _both("until all are answered", _seconds(mine), _seconds(others))


def _both(what: str, ours: str, theirs: str, target: str = "", *, met: bool | None = None) -> Line:
    return Line(goal="l", what=what, measured=ours, theirs=theirs, target=target, met=met, surely_missed=met is False)


def _pings(rounds: Sequence[Round]) -> str:
    pings = [ping for each in rounds for ping in each.pings]
    return milliseconds({"p50": quantile(pings, 0.5), "p99": quantile(pings, 0.99), "max": max(pings)})


def _apis(rounds: Sequence[Round]) -> str:
    seconds = sum(each.seconds for each in rounds)
    names = sorted({name for each in rounds for name in each.report.counts()})
    sums = {name: sum(each.report.counts().get(name, 0) for each in rounds) for name in names}
    return ", ".join(f"{name} {total / seconds:.1f}" for name, total in sums.items())


def _busiest(rounds: Sequence[Round]) -> str:
    return str(max(each.report.busiest("DescribeExecution") for each in rounds))


def _seconds(rounds: Sequence[Round]) -> str:
    return f"{interval([each.seconds for each in rounds]).median:.1f} s"


# --- what is started for it


@contextmanager
def _stub(place: Place) -> Generator[Control]:
    """The stub of AWS, with nothing in it."""
    control = Control(free_port())
    argv = [sys.executable, "-m", "scripts.bench_stepfunctions_stub", str(control.port)]
    with place.running(Command(name="stub", argv=argv, cwd=ROOT, env={}), control.answers):
        yield control
