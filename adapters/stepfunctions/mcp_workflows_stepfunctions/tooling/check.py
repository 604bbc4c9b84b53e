"""Checks that a workflow can run now, and that its definition fits the tool's gates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Final, cast

from mcp_workflows.adapter import JSON, Finding, closest
from mcp_workflows.errors import EngineError
from mcp_workflows_stepfunctions.arns import Machine
from mcp_workflows_stepfunctions.client import Client, ExpectedCodeError
from mcp_workflows_stepfunctions.definition import State, states
from mcp_workflows_stepfunctions.errors import DENIED, KMS_REFUSES
from mcp_workflows_stepfunctions.gates import gate_state, gate_token, points_to_token
from mcp_workflows_stepfunctions.questions import MCP_INPUT, TASK_TOKEN
from mcp_workflows_stepfunctions.settings import Events, StepFunctionsOptions
from mcp_workflows_stepfunctions.start import Machines

_ANSWERS: Final = frozenset({DENIED, "ResourceNotFound", "StateMachineDoesNotExist"})


async def check_engine(client: Client, events: Events | None) -> Finding:
    """Check that Step Functions accepts these credentials; a missing permission to list machines is not a problem.

    An unreadable queue of `events` is reported, but is not a problem: everything works without it.
    """
    try:
        await client.call("list_state_machines", known={DENIED}, maxResults=1)
    except ExpectedCodeError:
        pass  # it accepts the credentials; the permissions of each tool are checked with the tool
    except EngineError as error:
        running = client.endpoint_is_custom and "connection refused" in str(error)
        hint = "if it is, check endpoint_url" if running else "check region, endpoint_url, profile and assume_role"
        return Finding(ok=False, text=str(error), hint=hint)
    answers = f"Step Functions answers in {client.region}"
    try:
        if events is not None:  # VisibilityTimeout=0 hides no message from other consumers
            await client.queue("receive_message", QueueUrl=events.queue_url, WaitTimeSeconds=0, VisibilityTimeout=0)
    except EngineError as error:
        return Finding(ok=True, text=f"{answers}, but events cannot be read: {error}")
    return Finding(ok=True, text=answers)


async def check_machine(client: Client, machines: Machines, workflow: str, options: StepFunctionsOptions) -> Finding:
    """Check that the state machine exists, with its version or alias."""
    try:
        machine = await machines.find(workflow)
        machines.forget(machine)
        await machines.check_type(machine, express=options.express)
        if machine.qualifier:
            return await _check_qualified(client, machine)
    except EngineError as error:
        return Finding(ok=False, text=str(error))
    kind = "Express" if options.express else "Standard"
    return Finding(ok=True, text=f"{kind} state machine {machine.name} is there")


async def _check_qualified(client: Client, machine: Machine) -> Finding:
    """Check a version, described like a machine, or an alias, described by a separate call."""
    word = "version" if str(machine.qualifier).isdigit() else "alias"
    try:
        if word == "version":
            await client.call("describe_state_machine", known=_ANSWERS, stateMachineArn=machine.arn)
        else:
            await client.call("describe_state_machine_alias", known=_ANSWERS, stateMachineAliasArn=machine.arn)
    except ExpectedCodeError as answered:
        if answered.code == DENIED:
            return Finding(ok=None, text=f"{machine.name} is there; no permission to check whether its {word} is")
        return Finding(ok=False, text=f"{machine.name} has no {word} {machine.qualifier}")
    return Finding(ok=True, text=f"{machine.name} is there, with its {word} {machine.qualifier}")


_SLIP: Final = 0.85  # the similarity above which two error names count as one


async def verify(
    client: Client, machine: Machine, options: StepFunctionsOptions, gates: Mapping[str, Mapping[str, JSON]]
) -> Sequence[Finding]:
    """Return the findings; a missing state is a problem, an unreadable definition is not."""
    findings: list[Finding] = []
    try:
        for there in await definitions(client, machine):
            findings += [*_gates(there, gates), *_errors(there, gates), *_questions(there, options, gates)]
    except ExpectedCodeError:
        return [Finding(ok=None, text="its states could not be verified: the definition is encrypted")]
    except EngineError as error:
        return [Finding(ok=None, text=f"its states could not be verified: {error}")]
    return [finding for number, finding in enumerate(findings) if finding not in findings[:number]]


async def definitions(client: Client, machine: Machine) -> Sequence[Mapping[str, State]]:
    """Return the states of each definition that a start may run: an alias may refer to two versions.

    Raises:
        ExpectedCodeError: the definition is encrypted, and the key may not be used.
        EngineError: it cannot be read.
    """
    found = [
        await client.call("describe_state_machine", known=KMS_REFUSES, stateMachineArn=arn)
        for arn in await _started(client, machine)
    ]
    return [states(str(each.get("definition", ""))) for each in found]


async def _started(client: Client, machine: Machine) -> Sequence[str]:
    """Return the ARNs that a start may run: the machine or version, or the current versions of an alias."""
    if machine.qualifier is None or machine.qualifier.isdigit():
        return [machine.arn]
    found = await client.call("describe_state_machine_alias", stateMachineAliasArn=machine.arn)
    return [str(route["stateMachineVersionArn"]) for route in found["routingConfiguration"]]


def _gates(there: Mapping[str, State], gates: Mapping[str, Mapping[str, JSON]]) -> Iterator[Finding]:
    first: dict[str, str] = {}
    for gate, words in gates.items():
        name = gate_state(words.get("when"))
        state = there.get(name)
        if first.setdefault(name, gate) != gate:
            text = f"questions.{gate}.when: state {name!r} already belongs to gate {first[name]}"
            yield Finding(ok=False, text=text, hint="remove one of the two")
            continue
        if state is None:
            meant = closest(name, there)
            hint = f"did you mean {meant!r}?" if meant else f"its states: {', '.join(there)}"
            yield Finding(ok=False, text=f"questions.{gate}.when: there is no state {name!r}", hint=hint)
        elif not state.waits_for_token:
            yield Finding(
                ok=False,
                text=f"questions.{gate}.when: state {name!r} does not wait for a task token",
                hint="its Resource must end in .waitForTaskToken: only such states can be answered from outside",
            )
        else:
            yield from _token(f"questions.{gate}.when", state, gate_token(words.get("when")))


def _token(where: str, state: State, written: str | None) -> Iterator[Finding]:
    """Check that the task token of a state can be found in the parameters that the state sends."""
    places = state.token_places
    fields = [place for place in places if place.readable]
    put = f"put it into its own field of what the state sends: {_own_field(state)}"
    if not places:
        yield Finding(ok=False, text=f"{where}: state {state.name!r} sends its task token to nobody", hint=put)
    elif written is None and not fields:
        text = f"{where}: the task token of state {state.name!r} is in an expression that it cannot be read back from"
        yield Finding(ok=False, text=text, hint=put)
    elif written is not None and fields and not points_to_token(written, state.sent):
        text = f"{where}.token: {written} is not where state {state.name!r} has its task token"
        yield Finding(ok=False, text=text, hint=f"write token: {fields[0].expression}, or remove it")


def _own_field(state: State) -> str:
    """Return a separate field with the task token, in the query language of this state."""
    if state.jsonata:
        return f'"{TASK_TOKEN}": "{{% $states.context.Task.Token %}}"'
    return f'"{TASK_TOKEN}.$": "$$.Task.Token"'


def _errors(there: Mapping[str, State], gates: Mapping[str, Mapping[str, JSON]]) -> Iterator[Finding]:
    """Find errors of gates that differ slightly from those that the state catches; others may be meant to fail it."""
    for gate, words in gates.items():
        state = there.get(gate_state(words.get("when")))
        for part in ("send", "decline"):
            sending = words.get(part)
            error = cast("Mapping[str, JSON]", sending).get("error") if isinstance(sending, Mapping) else None
            if state is None or not isinstance(error, str) or error in state.caught or "{{" in error:
                continue
            if meant := get_close_matches(error, state.caught, n=1, cutoff=_SLIP):
                where = f"questions.{gate}.{part}.error"
                text = f"{where}: state {state.name!r} catches no error {error!r}; did you mean {meant[0]!r}?"
                yield Finding(ok=False, text=text, hint=f"correct {where}, or the Catch of the state")


def _questions(
    there: Mapping[str, State], options: StepFunctionsOptions, gates: Mapping[str, Mapping[str, JSON]]
) -> Iterator[Finding]:
    gated = {gate_state(words.get("when")) for words in gates.values()}
    for state in there.values():
        beside = (not place.readable or place.path[-1:] == (TASK_TOKEN,) for place in state.token_places)
        if state.asks and state.name not in gated and not any(beside):
            hint = f"write {_own_field(state)} beside {MCP_INPUT}"
            text = f"state {state.name!r} asks with {MCP_INPUT}, but has no {TASK_TOKEN} beside it: nobody can answer"
            yield Finding(ok=False, text=text, hint=hint)
    asking = [state for state in there.values() if state.asks or (state.waits_for_token and state.name in gated)]
    if asking and not options.history:
        names = ", ".join(state.name for state in asking)
        yield Finding(
            ok=False,
            text=f"{names}: people are asked, but with history: false nobody sees the questions",
            hint="remove history",
        )
    if unbounded := [state.name for state in asking if not state.bounded]:
        yield Finding(
            ok=True, text=f"{', '.join(unbounded)} has no TimeoutSeconds: without an answer it waits for a year"
        )
