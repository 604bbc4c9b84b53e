"""Settles, in your own AWS account, each point about Step Functions that was never run against AWS, in one table.

It makes a few small state machines named `mcp-workflows-verify-...`, runs each once or twice, and removes them again.
That takes about a minute and costs less than a cent. `--role` is the role the machines run as: it needs
`events:PutEvents` on the default event bus, and `states:StartSyncExecution` for the Express point. What is not as
the adapter assumes is marked; please open an issue with the table.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import uuid
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any, Final

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from rich.markup import escape
from rich.table import Table

from scripts.verify_lab import PREFIX, Lab, Machine, NotTriedError, Seen, answer, code, console, until

LARGEST: Final = 262_144  # bytes

ECHO: Final[Machine] = {"StartAt": "Echo", "States": {"Echo": {"Type": "Pass", "End": True}}}
SLEEP: Final[Machine] = {"StartAt": "Sleep", "States": {"Sleep": {"Type": "Wait", "Seconds": 120, "End": True}}}
FAIL: Final[Machine] = {"StartAt": "No", "States": {"No": {"Type": "Fail", "Error": "No", "Cause": "no"}}}
_DETAIL = {"taskToken.$": "$$.Task.Token", "mcpInput": {"message": "?", "requestedSchema": {"type": "object"}}}
_ENTRY = {"Source": "mcp.workflows.verify", "DetailType": "MCP Input Request", "Detail": _DETAIL}
ASK_STATE: Final[Machine] = {
    "Type": "Task",
    "Resource": "arn:aws:states:::events:putEvents.waitForTaskToken",
    "Parameters": {"Entries": [_ENTRY]},
    "TimeoutSeconds": 120,
    "End": True,
}
ASK: Final[Machine] = {"StartAt": "Ask", "States": {"Ask": ASK_STATE}}
FAILING_BRANCH: Final[Machine] = {
    "StartAt": "Pause",
    "States": {"Pause": {"Type": "Wait", "Seconds": 2, "Next": "No"}, "No": {"Type": "Fail", "Error": "No"}},
}
BRANCHES: Final[Machine] = {
    "StartAt": "Both",
    "States": {"Both": {"Type": "Parallel", "Branches": [ASK, FAILING_BRANCH], "End": True}},
}


# --- the points: what the adapter assumes is in each of them


def starts_again(lab: Lab) -> Iterator[Seen]:
    """the same name, running: the same input (also with other blanks), another input"""
    machine = lab.machine(SLEEP)
    first = lab.start(machine, "one", '{"a": 1}')
    same = lab.client.start_execution(stateMachineArn=machine, name="one", input='{"a": 1}')["executionArn"]
    yield _expect("same ARN" if same == first else same, "same ARN")
    blanks = answer(lambda: lab.client.start_execution(stateMachineArn=machine, name="one", input='{"a":1}'))
    yield Seen(text=f"the same JSON, written differently: {blanks}", ok=None)  # ours is canonical
    other = answer(lambda: lab.client.start_execution(stateMachineArn=machine, name="one", input="{}"))
    yield _expect(other, "ExecutionAlreadyExists")


def starts_after_the_end(lab: Lab) -> Iterator[Seen]:
    """the same name and input after it has ended"""
    machine = lab.machine(ECHO)
    lab.until(lab.start(machine, "one"), "SUCCEEDED")
    again = answer(lambda: lab.client.start_execution(stateMachineArn=machine, name="one", input="{}"))
    yield _expect(again, "ExecutionAlreadyExists")


def shows_soon(lab: Lab) -> Iterator[Seen]:
    """how soon a new execution can be described, and how long calls take (ms, median)"""
    machine = lab.machine(ECHO)
    lags: list[float] = []
    for _ in range(5):
        began = time.monotonic()
        arn = lab.start(machine)
        started = time.monotonic()
        lab.until(arn, "SUCCEEDED")
        lags.append((time.monotonic() - started) * 1e3)
        console.log(f"start {(started - began) * 1e3:.0f} ms", markup=False) if console.is_terminal else None
    looks = [_timed(lambda: lab.client.describe_execution(executionArn=lab.running[-1])) for _ in range(5)]
    pages = [_timed(lambda: lab.client.get_execution_history(executionArn=lab.running[-1])) for _ in range(5)]
    text = f"ended and shown after {median(lags):.0f}, describe {median(looks):.0f}, history {median(pages):.0f}"
    yield Seen(text=text, ok=None)


def _timed(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return (time.monotonic() - began) * 1e3


def refuses_large_inputs(lab: Lab) -> Iterator[Seen]:
    """an input of 262,145 bytes"""
    machine, large = lab.machine(ECHO), json.dumps("x" * (LARGEST - 1))
    said = answer(lambda: lab.client.start_execution(stateMachineArn=machine, name="large", input=large))
    yield Seen(text=said, ok=said != "accepted")


def qualified_arns(lab: Lab) -> Iterator[Seen]:
    """the ARN of an execution that was started by version, and by alias; the list of the whole machine has both"""
    machine = lab.machine(ECHO)
    version = lab.client.publish_state_machine_version(stateMachineArn=machine)["stateMachineVersionArn"]
    routing = [{"stateMachineVersionArn": version, "weight": 100}]
    alias = lab.client.create_state_machine_alias(name="VERIFY", routingConfiguration=routing)["stateMachineAliasArn"]
    try:
        plain = machine.replace(":stateMachine:", ":execution:")
        for qualified, name in ((version, "v"), (alias, "a")):
            yield _expect(lab.start(qualified, name).removeprefix(plain), f":{name}")
        said = answer(lambda: lab.client.start_execution(stateMachineArn=machine, name="a", input='{"b":1}'))
        yield _expect(f"unqualified, with the alias's name: {said}", "unqualified, with the alias's name: " + _TAKEN)
        began = time.monotonic()
        until(lambda: _listed(lab, machine, {"v", "a"}), "the list of executions")
        yield Seen(text=f"listed after {time.monotonic() - began:.1f} s", ok=True)
    finally:
        lab.client.delete_state_machine_alias(stateMachineAliasArn=alias)


def _listed(lab: Lab, machine: str, names: Collection[str]) -> Mapping[str, Any] | None:
    found: Mapping[str, Any] = lab.client.list_executions(stateMachineArn=machine)
    return found if {row["name"] for row in found["executions"]} >= {*names} else None


_TAKEN: Final = "ExecutionAlreadyExists"


def tokens_in_the_history(lab: Lab) -> Iterator[Seen]:
    """the task token is in the resolved parameters of TaskScheduled, and good for an answer"""
    arn = lab.start(lab.machine(ASK))
    token = lab.token(arn)
    yield _expect(answer(lambda: lab.client.send_task_success(taskToken=token, output='{"a":1}')), "accepted")
    yield _expect(lab.until(arn, "SUCCEEDED")["output"].replace(" ", ""), '{"a":1}')


def hidden_data(lab: Lab) -> Iterator[Seen]:
    """includeExecutionData=False hides those parameters"""
    arn = lab.start(lab.machine(ASK))
    lab.waiting(arn)
    events = lab.client.get_execution_history(executionArn=arn, includeExecutionData=False)["events"]
    details = next(event for event in events if event["type"] == "TaskScheduled")["taskScheduledEventDetails"]
    yield Seen(text="hidden" if "taskToken" not in details.get("parameters", "") else "shown", ok=None)


def late_answers(lab: Lab) -> Iterator[Seen]:
    """answers that come twice, that are no JSON, to a stopped execution, with a token that is none"""
    machine = lab.machine(ASK)
    arn = lab.start(machine)
    token = lab.token(arn)
    yield _expect(answer(lambda: lab.client.send_task_success(taskToken=token, output="{")), "InvalidOutput")
    lab.client.send_task_success(taskToken=token, output="{}")
    lab.until(arn, "SUCCEEDED")
    closed = ("TaskTimedOut", "TaskDoesNotExist", "InvalidToken")
    yield _one_of("twice", answer(lambda: lab.client.send_task_success(taskToken=token, output="{}")), closed)
    arn = lab.start(machine)
    token = lab.token(arn)
    lab.client.stop_execution(executionArn=arn)
    lab.until(arn, "ABORTED")
    yield _one_of("stopped", answer(lambda: lab.client.send_task_success(taskToken=token, output="{}")), closed)
    yield _one_of("no token", answer(lambda: lab.client.send_task_success(taskToken="x" * 40, output="{}")), closed)


def heartbeats(lab: Lab) -> Iterator[Seen]:
    """a heartbeat for a task without HeartbeatSeconds"""
    arn = lab.start(lab.machine(ASK))
    token = lab.token(arn)
    yield Seen(text=answer(lambda: lab.client.send_task_heartbeat(taskToken=token)), ok=None)


def branches(lab: Lab) -> Iterator[Seen]:
    """a question in a branch, when another branch fails: the events that close it"""
    arn = lab.start(lab.machine(BRANCHES))
    scheduled = lab.waiting(arn)["id"]
    lab.until(arn, "FAILED")
    events = lab.client.get_execution_history(executionArn=arn)["events"]
    after = [event["type"] for event in events if event["id"] > scheduled]
    yield Seen(text=", ".join(after), ok=bool({"ParallelStateFailed", "ExecutionFailed"} & set(after)))


def stops(lab: Lab) -> Iterator[Seen]:
    """stopping: how soon, with error and cause; and stopping what has ended"""
    machine = lab.machine(SLEEP)
    arn = lab.start(machine)
    lab.until(arn, "RUNNING")
    lab.client.stop_execution(executionArn=arn, error="Mcp.Cancelled", cause="verify")
    found = lab.until(arn, "ABORTED")
    yield _expect(f"{found.get('error')}: {found.get('cause')}", "Mcp.Cancelled: verify")
    yield _expect(answer(lambda: lab.client.stop_execution(executionArn=arn)), "accepted")
    ended = lab.start(lab.machine(ECHO))
    lab.until(ended, "SUCCEEDED")
    yield _expect(answer(lambda: lab.client.stop_execution(executionArn=ended)), "accepted")
    yield _expect(str(lab.client.describe_execution(executionArn=ended)["status"]), "SUCCEEDED")


def times_out(lab: Lab) -> Iterator[Seen]:
    """TimeoutSeconds of the machine: which error the execution has"""
    arn = lab.start(lab.machine({**SLEEP, "TimeoutSeconds": 1}))
    found = lab.until(arn, "TIMED_OUT")
    yield Seen(text=f"error {found.get('error')}, cause {found.get('cause')}", ok=None)


def redrives(lab: Lab) -> Iterator[Seen]:
    """a redriven execution runs again under its ARN, and event ids go on"""
    arn = lab.start(lab.machine(FAIL))
    lab.until(arn, "FAILED")
    before = max(event["id"] for event in lab.client.get_execution_history(executionArn=arn)["events"])
    lab.client.redrive_execution(executionArn=arn)
    again = until(
        lambda: next((e for e in _history(lab, arn) if e["type"] == "ExecutionRedriven"), None), "ExecutionRedriven"
    )
    yield Seen(text=f"ExecutionRedriven is event {again['id']} after {before}", ok=again["id"] > before)
    yield _expect(str(lab.client.describe_execution(executionArn=arn).get("redriveCount")), "1")


def _history(lab: Lab, arn: str) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = lab.client.get_execution_history(executionArn=arn)["events"]
    return found


def describes_machines(lab: Lab) -> Iterator[Seen]:
    """DescribeStateMachine with includedData=METADATA_ONLY tells the type"""
    found = lab.client.describe_state_machine(stateMachineArn=lab.machine(ECHO), includedData="METADATA_ONLY")
    yield _expect(str(found["type"]), "STANDARD")


def express(lab: Lab) -> Iterator[Seen]:
    """Express: describing an execution is refused; a Standard machine can run it (aws-sdk:sfn:startSyncExecution)"""
    machine = lab.machine(ECHO, type="EXPRESS")
    reply = lab.client.start_sync_execution(stateMachineArn=machine, input='{"a":1}')
    yield _expect(str(reply["output"]).replace(" ", ""), '{"a":1}')
    refused = answer(lambda: lab.client.describe_execution(executionArn=reply["executionArn"]))
    yield Seen(text=f"describe: {refused}", ok=refused != "accepted")
    parent = {
        "Type": "Task",
        "Resource": "arn:aws:states:::aws-sdk:sfn:startSyncExecution",
        "Parameters": {"StateMachineArn": machine, "Input.$": "States.JsonToString($)"},
        "OutputPath": "$.Output",
        "End": True,
    }
    arn = lab.start(lab.machine({"StartAt": "Run", "States": {"Run": parent}}), given='{"b":2}')
    yield Seen(text=f"from a Standard machine: {lab.until(arn, 'SUCCEEDED').get('output')}", ok=True)


def tags(lab: Lab) -> Iterator[Seen]:
    """a tagged machine is found by the Resource Groups Tagging API, and how soon"""
    value = uuid.uuid4().hex
    machine = lab.machine(ECHO, tags=[{"key": "mcp:verify", "value": value}])
    began = time.monotonic()
    until(lambda: _tagged(lab, machine, value), f"{machine} by its tag")
    yield Seen(text=f"after {time.monotonic() - began:.1f} s", ok=True)


def _tagged(lab: Lab, machine: str, value: str) -> Mapping[str, Any] | None:
    found = lab.tagging.get_resources(
        TagFilters=[{"Key": "mcp:verify", "Values": [value]}], ResourceTypeFilters=["states:stateMachine"]
    )
    rows: Sequence[Mapping[str, Any]] = found["ResourceTagMappingList"]
    return next((row for row in rows if row["ResourceARN"] == machine), None)


def lambda_token(lab: Lab) -> Iterator[Seen]:
    """lambda:invoke.waitForTaskToken: the token is in the resolved parameters too"""
    if lab.sink is None:
        raise NotTriedError("give a Lambda function that the role may call: --lambda ARN")
    payload = {"taskToken.$": "$$.Task.Token", "mcpInput": {"message": "?", "requestedSchema": {"type": "object"}}}
    state = {
        "Type": "Task",
        "Resource": "arn:aws:states:::lambda:invoke.waitForTaskToken",
        "Parameters": {"FunctionName": lab.sink, "Payload": payload},
        "TimeoutSeconds": 120,
        "End": True,
    }
    arn = lab.start(lab.machine({"StartAt": "Ask", "States": {"Ask": state}}))
    parameters = json.loads(lab.waiting(arn)["taskScheduledEventDetails"]["parameters"])
    yield _expect("there" if parameters["Payload"].get("taskToken") else "missing", "there")


def event_sizes(lab: Lab) -> Iterator[Seen]:
    """an EventBridge status event reaches the queue, and what it leaves out of an input of 200 KB"""
    if lab.queue is None:
        raise NotTriedError("give the queue of docs/stepfunctions-events.md: --queue-url URL")
    arn = lab.start(lab.machine(ECHO), given=json.dumps("x" * 200_000))
    began = time.monotonic()
    detail = until(lambda: lab.event_of(arn), f"an event of {arn}")
    kept = "kept" if detail.get("input") else "left out"
    text = f"after {time.monotonic() - began:.1f} s, input {kept}, inputDetails {detail.get('inputDetails')}"
    yield Seen(text=text, ok=True)


def send_task_permissions(lab: Lab) -> Iterator[Seen]:
    """SendTaskSuccess can be allowed for one state machine alone"""
    if lab.restricted is None:
        raise NotTriedError("give a role that you may assume and that may states:SendTaskSuccess: --assume ARN")
    machine, other = lab.machine(ASK), lab.machine(ASK)
    tokens = [lab.token(lab.start(each)) for each in (machine, other)]
    client = lab.restricted(machine)
    codes = [answer(lambda token=token: client.send_task_success(taskToken=token, output="{}")) for token in tokens]
    yield _expect(f"its own {codes[0]}, another's {codes[1]}", "its own accepted, another's AccessDeniedException")


POINTS: Final[Sequence[Callable[[Lab], Iterator[Seen]]]] = (
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


def _expect(found: str, wanted: str) -> Seen:
    return Seen(text=found if found == wanted else f"{found} (assumed: {wanted})", ok=found == wanted)


def _one_of(what: str, found: str, wanted: Sequence[str]) -> Seen:
    return Seen(text=f"{what}: {found}", ok=found in wanted)


def main() -> int:
    """Exit code 0 if nothing is other than assumed."""
    given = _arguments()
    try:
        with _lab(given) as lab:
            table = Table("what", "seen", "", show_lines=True)
            verdicts = [verdict for point in POINTS for verdict in _settle(point, lab, table)]
    except (BotoCoreError, ClientError) as error:
        console.print(f"verify-stepfunctions: {error}", markup=False)
        return 1
    console.print(table)
    wrong = verdicts.count(False)
    console.print(f"{len(verdicts)} points, {wrong} other than assumed", markup=False)
    return 1 if wrong else 0


def _settle(point: Callable[[Lab], Iterator[Seen]], lab: Lab, table: Table) -> Sequence[bool | None]:
    """One row of the table, whatever comes."""
    what = (point.__doc__ or point.__name__).strip()
    seen: list[Seen] = []
    try:
        seen.extend(point(lab))
    except NotTriedError as reason:
        seen.append(Seen(text=f"not tried: {reason}", ok=None))
    except (ClientError, BotoCoreError) as error:
        kind = code(error) if isinstance(error, ClientError) else type(error).__name__
        seen.append(Seen(text=f"could not be tried: {kind}: {error}", ok=None))
    words = {True: "[green]as assumed[/]", False: "[red]OTHER[/]", None: "noted"}
    table.add_row(what, escape("\n".join(each.text for each in seen)), "\n".join(words[each.ok] for each in seen))
    return [each.ok for each in seen]


@contextmanager
def _lab(given: argparse.Namespace) -> Generator[Lab]:
    session: Any = boto3.Session(profile_name=given.profile, region_name=given.region)
    config = Config(retries={"mode": "standard"}, inject_host_prefix=given.endpoint_url is None)
    client = session.client("stepfunctions", endpoint_url=given.endpoint_url, config=config)
    tagging = session.client("resourcegroupstaggingapi", endpoint_url=given.endpoint_url)
    messages = session.client("sqs", endpoint_url=given.endpoint_url)
    lab = Lab(
        client=client,
        tagging=tagging,
        messages=messages,
        queue=given.queue_url,
        role=given.role,
        sink=given.sink,
        restricted=partial(_restricted, session, given.assume) if given.assume else None,
    )
    try:
        yield lab
    finally:
        lab.tidy()
        for each in (client, tagging, messages):
            each.close()


def _restricted(session: Any, role: str, machine: str) -> Any:  # botocore has no types
    """A client that may answer this machine's tokens and do nothing else."""
    statement = {"Effect": "Allow", "Action": "states:SendTaskSuccess", "Resource": machine}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    assumed = session.client("sts").assume_role(RoleArn=role, RoleSessionName=PREFIX, Policy=policy)["Credentials"]
    return session.client(
        "stepfunctions",
        aws_access_key_id=assumed["AccessKeyId"],
        aws_secret_access_key=assumed["SecretAccessKey"],
        aws_session_token=assumed["SessionToken"],
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/verify-stepfunctions", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--role", required=True, metavar="ARN", help="the IAM role that the machines run as")
    parser.add_argument("--profile", help="of AWS's configuration files")
    parser.add_argument("--region")
    parser.add_argument("--lambda", dest="sink", metavar="ARN", help="a function that may be called with a question")
    parser.add_argument("--queue-url", metavar="URL", help="an SQS queue with EventBridge's status events")
    parser.add_argument("--assume", metavar="ARN", help="a role to try permissions with; it may states:SendTaskSuccess")
    parser.add_argument("--endpoint-url", help="another engine than AWS")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
