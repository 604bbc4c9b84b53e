"""An AWS account with a few state machines, as far as `make bench ENGINE=stepfunctions` needs one; counts its calls.

Nothing is computed: executions end, and ask, when they are told to or when their input says so. What is answered is as
https://docs.aws.amazon.com/step-functions/latest/apireference has it.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

REGION: Final = "us-east-1"
ACCOUNT: Final = "123456789012"
QUEUE: Final = "bench"  # of EventBridge's events
PLACE: Final = f"arn:aws:states:{REGION}:{ACCOUNT}"
PARKED: Final = "parked"  # goes on until it is told to end
BRIEF: Final = "brief"  # succeeds after `seconds` of its input
FAILING: Final = "failing"  # fails after as long
STEP: Final = "Packing"  # the state all are in
QUESTION: Final = "Ship it?"
_MACHINES: Final = (PARKED, BRIEF, FAILING)
_SNAPSHOTS: Final = 8  # lists that are being paged through
_EVERY: Final = 10  # of the executions one is asked for its age

Reply: TypeAlias = Mapping[str, Any] | str  # or its JSON already
Later: TypeAlias = Callable[[float, Callable[[], None]], object]


class RefusedError(Exception):
    """The API's way to say no: a code, and a text."""

    def __init__(self, code: str, text: str = "") -> None:
        super().__init__(text or code)
        self.code = code


@dataclass(slots=True, kw_only=True)
class Held:
    """One execution."""

    arn: str
    machine: str
    name: str
    input: str
    started: float = field(default_factory=time.time)
    told: float = field(default_factory=time.monotonic)  # when anybody was last told that it runs
    status: str = "RUNNING"
    stopped: float | None = None
    outcome: Mapping[str, str] = field(default_factory=dict[str, str])  # output, or error and cause
    token: str | None = None  # of the question it waits with
    news: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])  # in its history, after the usual
    row: str = ""  # of a list, as JSON

    def event(self, kind: str, **details: Any) -> None:
        """One more of its history."""
        number = len(self.news) + 3
        self.news.append(
            {"id": number, "previousEventId": number - 1, "type": kind, "timestamp": time.time(), **details}
        )

    def history(self) -> Sequence[Mapping[str, Any]]:
        """All of it, oldest first."""
        at = {"previousEventId": 0, "timestamp": self.started}
        begun = {"id": 1, "type": "ExecutionStarted", "executionStartedEventDetails": {"input": self.input}}
        entered = {"id": 2, "type": "TaskStateEntered", "stateEnteredEventDetails": {"name": STEP, "input": self.input}}
        return [{**at, **begun}, {**at, **entered}, *self.news]


class Account:
    """Its executions, the queue that EventBridge fills, and who asked what and when."""

    def __init__(self, later: Later) -> None:
        self.calls: list[tuple[str, float]] = []  # API and time (monotonic)
        self.ages: list[tuple[float, float]] = []  # when, and how long ago anybody was told of an execution; sampled
        self.started = 0  # executions
        self.queue: deque[str] = deque()
        self.lose = 0  # replies to StartExecution that get lost
        self._lost = False
        self._later = later
        self._held: dict[str, Held] = {}
        self._running: dict[str, dict[str, Held]] = {machine: {} for machine in _MACHINES}
        self._tokens: dict[str, Held] = {}
        self._snapshots: dict[str, Sequence[Held]] = {}
        self._apis: Mapping[str, Callable[[Mapping[str, Any]], Reply]] = {
            "DescribeStateMachine": self._describe_state_machine,
            "ListStateMachines": self._list_state_machines,
            "StartExecution": self._start_execution,
            "DescribeExecution": self._describe_execution,
            "GetExecutionHistory": self._get_execution_history,
            "ListExecutions": self._list_executions,
            "StopExecution": self._stop_execution,
            "SendTaskSuccess": self._send_task,
            "SendTaskFailure": self._send_task,
            "ReceiveMessage": self._receive_message,
            "DeleteMessageBatch": self._delete_message_batch,
        }

    # --- for who measures

    def seed(self, machine: str, names: Iterable[str]) -> Sequence[str]:
        """Executions that have been there for long."""
        return [self._add(machine, name, "{}").arn for name in names]

    def end(self, arn: str, status: str = "SUCCEEDED", **outcome: str) -> None:
        """It ends now."""
        held = self._held[arn]
        if held.status != "RUNNING":
            return
        held.status, held.stopped, held.outcome = status, time.time(), outcome or {"output": '{"total":1}'}
        held.event(f"Execution{status.title().replace('_', '')}")
        self._running[held.machine].pop(arn)
        self._tell("Step Functions Execution Status Change", held, status=status)

    def ask(self, arn: str) -> None:
        """It asks a person something, and tells the event bus."""
        held = self._held[arn]
        held.token = f"AQ{uuid.uuid4().hex}"
        self._tokens[held.token] = held
        schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}}
        asked = {"method": "elicitation/create", "params": {"message": QUESTION, "requestedSchema": schema}}
        detail = {"mcpInput": asked, "taskToken": held.token, "executionArn": arn}
        entry = {"Source": "mcp.workflows", "DetailType": "MCP Input Request", "Detail": detail}
        parameters = json.dumps({"Entries": [entry]})
        resource = {"resourceType": "events", "resource": "putEvents.waitForTaskToken", "region": REGION}
        held.event("TaskStateEntered", stateEnteredEventDetails={"name": "Approval", "input": "{}"})
        held.event("TaskScheduled", taskScheduledEventDetails={**resource, "parameters": parameters})
        self._tell("MCP Input Request", held)

    def loses(self) -> bool:
        """Whether the reply to this start gets lost on its way: every other one, so that trying again helps."""
        self._lost = self.lose > 0 and not self._lost
        self.lose -= self._lost
        return self._lost

    def sample(self) -> None:
        """How old is what the world knows of those that run?"""
        now = time.monotonic()
        running = [held for executions in self._running.values() for held in executions.values()]
        self.ages += [(now, now - held.told) for held in running[::_EVERY]]

    def forget(self) -> None:
        """Count from now on."""
        self.calls.clear()
        self.ages.clear()
        self.started = 0

    def report(self) -> Mapping[str, Any]:
        """What happened since then."""
        return {"calls": self.calls, "ages": self.ages, "started": self.started}

    # --- the APIs

    def reply(self, api: str, given: Mapping[str, Any]) -> Reply:
        """Answer one call.

        Raises:
            RefusedError: it says no.
        """
        self.calls.append((api, time.monotonic()))
        if api not in self._apis:
            raise RefusedError("UnknownOperationException", api)
        return self._apis[api](given)

    def _describe_state_machine(self, given: Mapping[str, Any]) -> Reply:
        name = self._machine(given["stateMachineArn"])
        definition = json.dumps({"StartAt": STEP, "States": {STEP: {"Type": "Pass", "End": True}}})
        return {**_machine(name), "status": "ACTIVE", "roleArn": "arn:aws:iam::1:role/x", "definition": definition}

    def _list_state_machines(self, given: Mapping[str, Any]) -> Reply:
        return {"stateMachines": [_machine(name) for name in _MACHINES]}

    def _start_execution(self, given: Mapping[str, Any]) -> Reply:
        machine, name = self._machine(given["stateMachineArn"]), given.get("name") or str(uuid.uuid4())
        text = given.get("input", "{}")
        held = self._held.get(f"{PLACE}:execution:{machine}:{name}")
        if held is None:
            held = self._add(machine, name, text)
            self.started += 1
            self._plan(held)
        elif held.status != "RUNNING" or held.input != text:
            raise RefusedError("ExecutionAlreadyExists", f"Execution Already Exists: '{held.arn}'")
        return {"executionArn": held.arn, "startDate": held.started}

    def _plan(self, held: Held) -> None:
        self._tell("Step Functions Execution Status Change", held, status="RUNNING")
        if held.machine == PARKED:
            return
        failed = {"status": "FAILED", "error": "Orders.NoStock", "cause": "sku A1 is sold out"}
        how = failed if held.machine == FAILING else {"output": '{"total":1}'}
        self._later(_seconds(json.loads(held.input)), lambda: self.end(held.arn, **how))

    def _describe_execution(self, given: Mapping[str, Any]) -> Reply:
        held = self._one(given["executionArn"])
        held.told = time.monotonic()
        stopped = {} if held.stopped is None else {"stopDate": held.stopped}
        known = {"name": held.name, "status": held.status, "startDate": held.started, "input": held.input}
        machine = f"{PLACE}:stateMachine:{held.machine}"
        return {"executionArn": held.arn, "stateMachineArn": machine, **known, **stopped, **held.outcome}

    def _get_execution_history(self, given: Mapping[str, Any]) -> Reply:
        events = list(self._one(given["executionArn"]).history())
        events = events[::-1] if given.get("reverseOrder") else events
        return {"events": events[: given.get("maxResults") or 100]}

    def _list_executions(self, given: Mapping[str, Any]) -> Reply:
        """Newest first; of the pages, all are as it was at the time of the first."""
        size, token = given.get("maxResults") or 100, given.get("nextToken") or self._snapshot(given)
        key, _, begin = token.partition(":")
        if key not in self._snapshots:
            raise RefusedError("InvalidToken", "Invalid Token: 'Invalid token'")
        after = int(begin) + size
        page, now = self._snapshots[key][int(begin) : after], time.monotonic()
        for held in page:
            held.told = now
        more = f',"nextToken":"{key}:{after}"' if after < len(self._snapshots[key]) else ""
        return f'{{"executions":[{",".join(held.row for held in page)}]{more}}}'

    def _snapshot(self, given: Mapping[str, Any]) -> str:
        machine = self._machine(given["stateMachineArn"])
        if given.get("statusFilter") != "RUNNING":
            raise RefusedError("ValidationException", "only those that run are listed here")
        key = uuid.uuid4().hex
        self._snapshots[key] = list(reversed(self._running[machine].values()))
        while len(self._snapshots) > _SNAPSHOTS:
            del self._snapshots[next(iter(self._snapshots))]
        return f"{key}:0"

    def _stop_execution(self, given: Mapping[str, Any]) -> Reply:
        held = self._one(given["executionArn"])
        self.end(held.arn, "ABORTED", **{key: given[key] for key in ("error", "cause") if given.get(key)})
        return {"stopDate": held.stopped}

    def _send_task(self, given: Mapping[str, Any]) -> Reply:
        held = self._tokens.pop(given["taskToken"], None)
        if held is None or held.status != "RUNNING":
            raise RefusedError("TaskTimedOut", "Task Timed Out: 'Provided task does not exist anymore'")
        held.token = None
        held.event("TaskSucceeded", taskSucceededEventDetails={"output": given.get("output", "{}")})
        return {}

    def _receive_message(self, given: Mapping[str, Any]) -> Reply:
        many = min(len(self.queue), given.get("MaxNumberOfMessages") or 1)
        taken = [self.queue.popleft() for _ in range(many)]
        return {"Messages": [{"MessageId": str(n), "ReceiptHandle": str(n), "Body": at} for n, at in enumerate(taken)]}

    def _delete_message_batch(self, given: Mapping[str, Any]) -> Reply:
        return {"Successful": [{"Id": entry["Id"]} for entry in given["Entries"]], "Failed": []}

    # ---

    def _add(self, machine: str, name: str, text: str) -> Held:
        arn = f"{PLACE}:execution:{machine}:{name}"
        held = Held(arn=arn, machine=machine, name=name, input=text)
        row = {"executionArn": arn, "stateMachineArn": f"{PLACE}:stateMachine:{machine}", "name": name}
        held.row = json.dumps({**row, "status": "RUNNING", "startDate": held.started, "redriveCount": 0})
        self._held[arn] = self._running[machine][arn] = held
        return held

    def _one(self, arn: str) -> Held:
        if arn not in self._held:
            raise RefusedError("ExecutionDoesNotExist", f"Execution Does Not Exist: '{arn}'")
        return self._held[arn]

    def _machine(self, arn: str) -> str:
        name = arn.rpartition(":")[2]
        if name not in _MACHINES:
            raise RefusedError("StateMachineDoesNotExist", f"State Machine Does Not Exist: '{arn}'")
        return name

    def _tell(self, kind: str, held: Held, **detail: str) -> None:
        about = {"executionArn": held.arn, "name": held.name, **detail}
        self.queue.append(json.dumps({"detail-type": kind, "resources": [held.arn], "detail": about}))


def _machine(name: str) -> Mapping[str, Any]:
    arn = f"{PLACE}:stateMachine:{name}"
    return {"stateMachineArn": arn, "name": name, "type": "STANDARD", "creationDate": 1_760_000_000.0}


def _seconds(given: Any) -> float:
    """`seconds` of an input; Any: a JSON value."""
    return float(given.get("seconds", 0))
