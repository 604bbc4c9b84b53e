"""The IAM policy with the minimum permissions that some tools need, for the calling identity: a role or a user.

https://docs.aws.amazon.com/service-authorization/latest/reference/list_awsstepfunctions.html lists the resources and
condition keys of each action. For a version or alias, the resource is the machine's ARN, narrowed by
`states:StateMachineQualifier`; executions inherit the tags of their machine. SendTask* has no resource on that page,
but AWS checks the machine of the token: its refusals name it, and `grantTaskResponse` of the AWS CDK allows it. Whether
the machine's tags apply is not documented, so they are not a condition there.
"""

from __future__ import annotations

import json
import logging
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast
from urllib.parse import urlsplit

from mcp_workflows.adapter import JSON
from mcp_workflows.kit.tooling import Use
from mcp_workflows_stepfunctions.arns import REGION, Machine, Place
from mcp_workflows_stepfunctions.client import Client
from mcp_workflows_stepfunctions.settings import AssumeRole, StepFunctionsSettings
from mcp_workflows_stepfunctions.start import Machines

ALL: Final = "*"

_TAGGED_MACHINES: Final = (
    *("states:DescribeStateMachine", "states:ListExecutions"),
    *("states:StartExecution", "states:StartSyncExecution"),
)
_TAGGED_EXECUTIONS: Final = ("states:DescribeExecution", "states:GetExecutionHistory", "states:StopExecution")
_REGION = re.compile(rf"(?:^|\.)(?P<region>{REGION})\.")  # a label of a host
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Need:
    """An action that the use of a tool may need, on one resource; a `qualifier` narrows it to a version or alias."""

    sid: str
    action: str
    needed: bool
    resource: str
    qualifier: str | None = None


def _needs(use: Use, machine: Machine) -> Sequence[Need]:
    """Return the possible needs of a tool: always the same actions in the same order."""
    itself, runs, version = machine.unqualified, machine.execution(ALL), machine.qualifier
    express = use.options.get("express") is True
    standard, starts = not express, not use.watches
    reads = standard and use.options.get("history") is not False
    answers = reads and use.answers
    locates = reads and any(_field(gate.get("when"), "token") is None for gate in use.gates.values())
    sent = [gate.get(word) for gate in use.gates.values() for word in ("send", "decline")]
    fails = answers and any(_field(word, "error") is not None for word in sent)
    aliased = version is not None and not version.isdigit()
    return (
        Need("Describe", "states:DescribeStateMachine", True, itself),
        Need("DescribeAlias", "states:DescribeStateMachineAlias", aliased, itself, version),
        Need("Start", "states:StartExecution", standard and starts, itself, version),
        Need("RunExpress", "states:StartSyncExecution", express and starts, itself, version),
        Need("List", "states:ListExecutions", standard, itself),
        Need("Poll", "states:DescribeExecution", standard, runs),
        Need("Read", "states:GetExecutionHistory", reads, runs),
        Need("Locate", "states:DescribeStateMachineForExecution", locates, runs),
        Need("Stop", "states:StopExecution", standard and use.cancels, runs),
        Need("Answer", "states:SendTaskSuccess", answers, itself),
        Need("Decline", "states:SendTaskFailure", fails, itself),
    )


def _field(settings: JSON, name: str) -> JSON:
    """Return a field of a part of a gate; None if the part is a text."""
    return cast("Mapping[str, JSON]", settings).get(name) if isinstance(settings, Mapping) else None


async def permissions(client: Client, settings: StepFunctionsSettings, uses: Sequence[Use]) -> Mapping[str, JSON]:
    """Return the policy for these uses, and for `events` and `discover` if they are set; see `Permits.permissions`.

    With `assume_role`, the policy is for that role; the policy of its caller, another identity, is logged.

    Raises:
        EngineRefused: a workflow does not belong to this engine.
        EngineUnavailable: the account cannot be determined.
    """
    machines = Machines(client, settings.known_account)
    needed = [_needs(use, await machines.find(use.workflow)) for use in uses]
    allowed = list(_for_uses(needed))
    if settings.events is not None:
        queue = queue_arn(settings.events.queue_url, client.region, client.partition)
        actions = ("sqs:DeleteMessage", "sqs:ReceiveMessage")
        allowed.append(Permission(sid="ReceiveEvents", actions=actions, resources=frozenset({queue})))
    if settings.discover is not None:
        allowed.extend(_for_tagged(await client.place(), *settings.discover.key_and_value))
    policy = policy_document(allowed)
    if (size := len(json.dumps(policy, separators=(",", ":")))) > LARGEST:
        _log.warning("this policy has %d characters, IAM takes %d: split it, one for some of the tools", size, LARGEST)
    if settings.assume_role is not None:
        callers = any(use.options.get("source_identity") is not None for use in uses)
        policy_of_caller = json.dumps(caller_policy(settings.assume_role, callers=callers))
        text = "this policy is for %s; who assumes that role needs another: %s"
        _log.warning(text, settings.assume_role.arn, policy_of_caller)
    return policy


def caller_policy(role: AssumeRole, *, callers: bool = False) -> Mapping[str, JSON]:
    """Return the policy of the identity that assumes the role; `callers`: tools assume it for their callers."""
    actions = ("sts:AssumeRole", *(("sts:SetSourceIdentity",) if role.source_identity or callers else ()))
    return policy_document([Permission(sid="AssumeRole", actions=actions, resources=frozenset({role.arn}))])


def queue_arn(url: str, region: str, partition: str) -> str:
    """Return the ARN of a queue from its URL, `https://HOST/ACCOUNT/NAME`, in the Region of the host."""
    parts = urlsplit(url)
    account, name = parts.path.strip("/").split("/")[-2:]
    host = _REGION.search(parts.hostname or "")
    return f"arn:{partition}:sqs:{host['region'] if host else region}:{account}:{name}"


def _for_uses(needed: Iterable[Sequence[Need]]) -> Iterator[Permission]:
    """Permit each action on the machines that any use needs as a whole, and on the others narrowed by qualifier."""
    for of_all_uses in zip(*needed, strict=True):
        wanted = [need for need in of_all_uses if need.needed]
        whole = frozenset(need.resource for need in wanted if not need.qualifier)
        narrow: dict[str, set[str]] = defaultdict(set)
        for need in wanted:
            if need.resource not in whole:
                narrow[str(need.qualifier)].add(need.resource)
        sid, actions = of_all_uses[0].sid, (of_all_uses[0].action,)
        if whole:
            yield Permission(sid=sid, actions=actions, resources=whole)
        for qualifier in sorted(narrow):
            condition = {"ForAnyValue:StringEquals": {"states:StateMachineQualifier": [qualifier]}}
            yield Permission(sid=sid, actions=actions, resources=frozenset(narrow[qualifier]), condition=condition)


def _for_tagged(place: Place, key: str, value: str) -> Iterator[Permission]:
    """Permit all machines that are tagged now or later, with the tag as a condition."""
    machine = Machine(place=place, name=ALL)
    machines, executions = frozenset({machine.unqualified}), frozenset({machine.execution(ALL)})
    tagged = {"StringEquals": {f"aws:ResourceTag/{key}": value}}
    yield Permission(sid="FindTagged", actions=("tag:GetResources",), resources=frozenset({ALL}))
    yield Permission(sid="Tagged", actions=_TAGGED_MACHINES, resources=machines, condition=tagged)
    yield Permission(sid="TaggedExecutions", actions=_TAGGED_EXECUTIONS, resources=executions, condition=tagged)
    yield Permission(sid="Answer", actions=("states:SendTaskSuccess",), resources=machines)


VERSION: Final = "2012-10-17"  # of the policy language
LARGEST: Final = 6_144  # characters of a managed policy, white space not counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """Actions on resources; `sid` names their purpose."""

    sid: str
    actions: tuple[str, ...]
    resources: frozenset[str]
    condition: Mapping[str, Mapping[str, JSON]] | None = None


def policy_document(allowed: Iterable[Permission]) -> Mapping[str, JSON]:
    """Return a deterministic policy that is as short as possible, as IAM limits its characters.

    Actions with the same resources and condition share a statement.
    Source: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_grammar.html
    """
    together: dict[str, list[Permission]] = defaultdict(list)
    for each in allowed:
        together[json.dumps([sorted(each.resources), each.condition], sort_keys=True)].append(each)
    taken: set[str] = set()
    return {"Version": VERSION, "Statement": [_statement(group, taken) for group in together.values()]}


def _statement(group: Sequence[Permission], taken: set[str]) -> Mapping[str, JSON]:
    name = "".join(dict.fromkeys(each.sid for each in group))
    sid = next(each for each in (name, *(f"{name}{n}" for n in range(2, len(taken) + 3))) if each not in taken)
    taken.add(sid)
    statement = {
        "Sid": sid,
        "Effect": "Allow",
        "Action": sorted({action for each in group for action in each.actions}),
        "Resource": sorted(group[0].resources),
    }
    return statement if group[0].condition is None else {**statement, "Condition": group[0].condition}
