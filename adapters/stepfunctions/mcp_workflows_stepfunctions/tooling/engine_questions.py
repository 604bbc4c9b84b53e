"""Questions about Step Functions that only AWS can answer, with the answers that the adapter expects.

Each blocks, and its docstring is shown.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false
# Reason: botocore has no types.

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any, Final

from mcp_workflows.adapter import Observation
from mcp_workflows.testing.laws import NotTried, until_found
from mcp_workflows_stepfunctions.tooling.deployment import Definition, Deployment, answer

LARGEST: Final = 262_144  # bytes

ECHO: Final[Definition] = {"StartAt": "Echo", "States": {"Echo": {"Type": "Pass", "End": True}}}
SLEEP: Final[Definition] = {"StartAt": "Sleep", "States": {"Sleep": {"Type": "Wait", "Seconds": 120, "End": True}}}
FAIL: Final[Definition] = {"StartAt": "No", "States": {"No": {"Type": "Fail", "Error": "No", "Cause": "no"}}}
_DETAIL = {"taskToken.$": "$$.Task.Token", "mcpInput": {"message": "?", "requestedSchema": {"type": "object"}}}
_ENTRY = {"Source": "mcp.workflows.verify", "DetailType": "MCP Input Request", "Detail": _DETAIL}
ASK_STATE: Final[Definition] = {
    "Type": "Task",
    "Resource": "arn:aws:states:::events:putEvents.waitForTaskToken",
    "Parameters": {"Entries": [_ENTRY]},
    "TimeoutSeconds": 120,
    "End": True,
}
ASK: Final[Definition] = {"StartAt": "Ask", "States": {"Ask": ASK_STATE}}
FAILING_BRANCH: Final[Definition] = {
    "StartAt": "Pause",
    "States": {"Pause": {"Type": "Wait", "Seconds": 2, "Next": "No"}, "No": {"Type": "Fail", "Error": "No"}},
}
BRANCHES: Final[Definition] = {
    "StartAt": "Both",
    "States": {"Both": {"Type": "Parallel", "Branches": [ASK, FAILING_BRANCH], "End": True}},
}


# --- the questions: what the adapter expects is in each of them


def starts_again(at: Deployment) -> Iterator[Observation]:
    """The same name while it runs, with the same input (also with other blanks), and with another."""
    machine = at.machine(SLEEP)
    first = at.start(machine, "one", '{"a": 1}')
    same = at.client.start_execution(stateMachineArn=machine, name="one", input='{"a": 1}')["executionArn"]
    yield _expect("same ARN" if same == first else same, "same ARN")
    blanks = answer(lambda: at.client.start_execution(stateMachineArn=machine, name="one", input='{"a":1}'))
    yield _seen(f"the same JSON, written differently: {blanks}", ok=None)  # ours is canonical
    other = answer(lambda: at.client.start_execution(stateMachineArn=machine, name="one", input="{}"))
    yield _expect(other, "ExecutionAlreadyExists")


def starts_after_the_end(at: Deployment) -> Iterator[Observation]:
    """The same name and input after it has ended."""
    machine = at.machine(ECHO)
    at.until(at.start(machine, "one"), "SUCCEEDED")
    again = answer(lambda: at.client.start_execution(stateMachineArn=machine, name="one", input="{}"))
    yield _expect(again, "ExecutionAlreadyExists")


def shows_soon(at: Deployment) -> Iterator[Observation]:
    """The time until a new execution can be described, and the time of calls (ms, median)."""
    machine = at.machine(ECHO)
    lags: list[float] = []
    for _ in range(5):
        arn = at.start(machine)
        started = time.monotonic()
        at.until(arn, "SUCCEEDED")
        lags.append((time.monotonic() - started) * 1e3)
    looks = [_timed(lambda: at.client.describe_execution(executionArn=at.running[-1])) for _ in range(5)]
    pages = [_timed(lambda: at.client.get_execution_history(executionArn=at.running[-1])) for _ in range(5)]
    text = f"ended and shown after {median(lags):.0f}, describe {median(looks):.0f}, history {median(pages):.0f}"
    yield _seen(text, ok=None)


def _timed(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return (time.monotonic() - began) * 1e3


def refuses_large_inputs(at: Deployment) -> Iterator[Observation]:
    """An input of 262,145 bytes."""
    machine, large = at.machine(ECHO), json.dumps("x" * (LARGEST - 1))
    said = answer(lambda: at.client.start_execution(stateMachineArn=machine, name="large", input=large))
    yield _seen(said, ok=said != "accepted")


def qualified_arns(at: Deployment) -> Iterator[Observation]:
    """The ARN of an execution that was started by version, and by alias; the list of the whole machine has both."""
    machine = at.machine(ECHO)
    version = at.client.publish_state_machine_version(stateMachineArn=machine)["stateMachineVersionArn"]
    routing = [{"stateMachineVersionArn": version, "weight": 100}]
    alias = at.client.create_state_machine_alias(name="VERIFY", routingConfiguration=routing)["stateMachineAliasArn"]
    try:
        plain = machine.replace(":stateMachine:", ":execution:")
        for qualified, name in ((version, "v"), (alias, "a")):
            yield _expect(at.start(qualified, name).removeprefix(plain), f":{name}")
        said = answer(lambda: at.client.start_execution(stateMachineArn=machine, name="a", input='{"b":1}'))
        yield _expect(f"unqualified, with the alias's name: {said}", "unqualified, with the alias's name: " + _TAKEN)
        began = time.monotonic()
        until_found(lambda: _listed(at, machine, {"v", "a"}), "the list of executions")
        yield _seen(f"listed after {time.monotonic() - began:.1f} s", ok=True)
    finally:
        at.client.delete_state_machine_alias(stateMachineAliasArn=alias)


def _listed(at: Deployment, machine: str, names: Collection[str]) -> Mapping[str, Any] | None:
    found: Mapping[str, Any] = at.client.list_executions(stateMachineArn=machine)
    return found if {row["name"] for row in found["executions"]} >= {*names} else None


_TAKEN: Final = "ExecutionAlreadyExists"


def tokens_in_the_history(at: Deployment) -> Iterator[Observation]:
    """The task token is in the resolved parameters of TaskScheduled, and good for an answer."""
    arn = at.start(at.machine(ASK))
    token = at.token(arn)
    yield _expect(answer(lambda: at.client.send_task_success(taskToken=token, output='{"a":1}')), "accepted")
    yield _expect(at.until(arn, "SUCCEEDED")["output"].replace(" ", ""), '{"a":1}')


def hidden_data(at: Deployment) -> Iterator[Observation]:
    """`includeExecutionData=False` hides those parameters."""
    arn = at.start(at.machine(ASK))
    at.waiting(arn)
    events = at.client.get_execution_history(executionArn=arn, includeExecutionData=False)["events"]
    details = next(event for event in events if event["type"] == "TaskScheduled")["taskScheduledEventDetails"]
    yield _seen("hidden" if "taskToken" not in details.get("parameters", "") else "shown", ok=None)


def late_answers(at: Deployment) -> Iterator[Observation]:
    """Answers that come twice, that are no JSON, to a stopped execution, with a token that is none."""
    machine = at.machine(ASK)
    arn = at.start(machine)
    token = at.token(arn)
    yield _expect(answer(lambda: at.client.send_task_success(taskToken=token, output="{")), "InvalidOutput")
    at.client.send_task_success(taskToken=token, output="{}")
    at.until(arn, "SUCCEEDED")
    closed = ("TaskTimedOut", "TaskDoesNotExist", "InvalidToken")
    yield _one_of("twice", answer(lambda: at.client.send_task_success(taskToken=token, output="{}")), closed)
    arn = at.start(machine)
    token = at.token(arn)
    at.client.stop_execution(executionArn=arn)
    at.until(arn, "ABORTED")
    yield _one_of("stopped", answer(lambda: at.client.send_task_success(taskToken=token, output="{}")), closed)
    yield _one_of("no token", answer(lambda: at.client.send_task_success(taskToken="x" * 40, output="{}")), closed)


def heartbeats(at: Deployment) -> Iterator[Observation]:
    """A heartbeat for a task without HeartbeatSeconds."""
    arn = at.start(at.machine(ASK))
    token = at.token(arn)
    yield _seen(answer(lambda: at.client.send_task_heartbeat(taskToken=token)), ok=None)


def branches(at: Deployment) -> Iterator[Observation]:
    """A question in a branch, when another branch fails: the events that close it."""
    arn = at.start(at.machine(BRANCHES))
    scheduled = at.waiting(arn)["id"]
    at.until(arn, "FAILED")
    events = at.client.get_execution_history(executionArn=arn)["events"]
    after = [event["type"] for event in events if event["id"] > scheduled]
    yield _seen(", ".join(after), ok=bool({"ParallelStateFailed", "ExecutionFailed"} & set(after)))


def stops(at: Deployment) -> Iterator[Observation]:
    """A stop, with error and cause; and a stop after the end."""
    machine = at.machine(SLEEP)
    arn = at.start(machine)
    at.until(arn, "RUNNING")
    at.client.stop_execution(executionArn=arn, error="Mcp.Cancelled", cause="verify")
    found = at.until(arn, "ABORTED")
    yield _expect(f"{found.get('error')}: {found.get('cause')}", "Mcp.Cancelled: verify")
    yield _expect(answer(lambda: at.client.stop_execution(executionArn=arn)), "accepted")
    ended = at.start(at.machine(ECHO))
    at.until(ended, "SUCCEEDED")
    yield _expect(answer(lambda: at.client.stop_execution(executionArn=ended)), "accepted")
    yield _expect(str(at.client.describe_execution(executionArn=ended)["status"]), "SUCCEEDED")


def times_out(at: Deployment) -> Iterator[Observation]:
    """`TimeoutSeconds` of the machine: the error of the execution."""
    arn = at.start(at.machine({**SLEEP, "TimeoutSeconds": 1}))
    found = at.until(arn, "TIMED_OUT")
    yield _seen(f"error {found.get('error')}, cause {found.get('cause')}", ok=None)


def redrives(at: Deployment) -> Iterator[Observation]:
    """A redriven execution runs again under its ARN, and event ids go on."""
    arn = at.start(at.machine(FAIL))
    at.until(arn, "FAILED")
    before = max(event["id"] for event in at.client.get_execution_history(executionArn=arn)["events"])
    at.client.redrive_execution(executionArn=arn)
    again = until_found(
        lambda: next((e for e in _history(at, arn) if e["type"] == "ExecutionRedriven"), None), "ExecutionRedriven"
    )
    yield _seen(f"ExecutionRedriven is event {again['id']} after {before}", ok=again["id"] > before)
    yield _expect(str(at.client.describe_execution(executionArn=arn).get("redriveCount")), "1")


def _history(at: Deployment, arn: str) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = at.client.get_execution_history(executionArn=arn)["events"]
    return found


def describes_machines(at: Deployment) -> Iterator[Observation]:
    """`DescribeStateMachine` with `includedData=METADATA_ONLY` tells the type."""
    found = at.client.describe_state_machine(stateMachineArn=at.machine(ECHO), includedData="METADATA_ONLY")
    yield _expect(str(found["type"]), "STANDARD")


def express(at: Deployment) -> Iterator[Observation]:
    """Express: describing an execution is refused; a Standard machine can run it (aws-sdk:sfn:startSyncExecution)."""
    machine = at.machine(ECHO, type="EXPRESS")
    reply = at.clients.sync.start_sync_execution(stateMachineArn=machine, input='{"a":1}')
    yield _expect(str(reply["output"]).replace(" ", ""), '{"a":1}')
    refused = answer(lambda: at.client.describe_execution(executionArn=reply["executionArn"]))
    yield _seen(f"describe: {refused}", ok=refused != "accepted")
    parent = {
        "Type": "Task",
        "Resource": "arn:aws:states:::aws-sdk:sfn:startSyncExecution",
        "Parameters": {"StateMachineArn": machine, "Input.$": "States.JsonToString($)"},
        "OutputPath": "$.Output",
        "End": True,
    }
    arn = at.start(at.machine({"StartAt": "Run", "States": {"Run": parent}}), given='{"b":2}')
    yield _seen(f"from a Standard machine: {at.until(arn, 'SUCCEEDED').get('output')}", ok=True)


def tags(at: Deployment) -> Iterator[Observation]:
    """A tagged machine is found by the Resource Groups Tagging API, and how soon."""
    value = uuid.uuid4().hex
    machine = at.machine(ECHO, tags=[{"key": "mcp:verify", "value": value}])
    began = time.monotonic()
    until_found(lambda: _tagged(at, machine, value), f"{machine} by its tag")
    yield _seen(f"after {time.monotonic() - began:.1f} s", ok=True)


def _tagged(at: Deployment, machine: str, value: str) -> Mapping[str, Any] | None:
    tagging: Any = at.clients.tagging  # it was opened
    found = tagging.get_resources(
        TagFilters=[{"Key": "mcp:verify", "Values": [value]}], ResourceTypeFilters=["states:stateMachine"]
    )
    rows: Sequence[Mapping[str, Any]] = found["ResourceTagMappingList"]
    return next((row for row in rows if row["ResourceARN"] == machine), None)


def lambda_token(at: Deployment) -> Iterator[Observation]:
    """`lambda:invoke.waitForTaskToken`: the token is in the resolved parameters too."""
    if at.settings.function is None:
        raise NotTried("name a Lambda function that the role may call: --set function=ARN")
    payload = {"taskToken.$": "$$.Task.Token", "mcpInput": {"message": "?", "requestedSchema": {"type": "object"}}}
    state = {
        "Type": "Task",
        "Resource": "arn:aws:states:::lambda:invoke.waitForTaskToken",
        "Parameters": {"FunctionName": at.settings.function, "Payload": payload},
        "TimeoutSeconds": 120,
        "End": True,
    }
    arn = at.start(at.machine({"StartAt": "Ask", "States": {"Ask": state}}))
    parameters = json.loads(at.waiting(arn)["taskScheduledEventDetails"]["parameters"])
    yield _expect("there" if parameters["Payload"].get("taskToken") else "missing", "there")


def event_sizes(at: Deployment) -> Iterator[Observation]:
    """An EventBridge status event reaches the queue; an input of 200 KB is left out."""
    if at.settings.queue_url is None:
        raise NotTried("name a queue (`mcp-workflows docs stepfunctions-events`): --set queue_url=URL")
    arn = at.start(at.machine(ECHO), given=json.dumps("x" * 200_000))
    began = time.monotonic()
    detail = until_found(lambda: at.event_of(arn), f"an event of {arn}")
    kept = "kept" if detail.get("input") else "left out"
    text = f"after {time.monotonic() - began:.1f} s, input {kept}, inputDetails {detail.get('inputDetails')}"
    yield _seen(text, ok=True)


def send_task_permissions(at: Deployment) -> Iterator[Observation]:
    """`SendTaskSuccess` can be allowed for one state machine alone."""
    if at.settings.assume is None:
        raise NotTried("name a role that you may assume and that may states:SendTaskSuccess: --set assume=ARN")
    machine, other = at.machine(ASK), at.machine(ASK)
    tokens = [at.token(at.start(each)) for each in (machine, other)]
    client = at.restricted(at.settings.assume, machine)
    codes = [answer(partial(client.send_task_success, taskToken=token, output="{}")) for token in tokens]
    yield _expect(f"its own {codes[0]}, another's {codes[1]}", "its own accepted, another's AccessDeniedException")


QUESTIONS: Final[Sequence[Callable[[Deployment], Iterator[Observation]]]] = (
    starts_again,
    starts_after_the_end,
    shows_soon,
    refuses_large_inputs,
    qualified_arns,
    describes_machines,
    tokens_in_the_history,
    hidden_data,
    late_answers,
    heartbeats,
    branches,
    lambda_token,
    stops,
    times_out,
    redrives,
    express,
    tags,
    event_sizes,
    send_task_permissions,
)


def _seen(text: str, ok: bool | None) -> Observation:
    return Observation(expected="", seen=text, ok=ok)


def _expect(found: str, wanted: str) -> Observation:
    return Observation(expected=wanted, seen=found, ok=found == wanted)


def _one_of(what: str, found: str, wanted: Sequence[str]) -> Observation:
    return Observation(expected=" or ".join(wanted), seen=f"{what}: {found}", ok=found in wanted)
