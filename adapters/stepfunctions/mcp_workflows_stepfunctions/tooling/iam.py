"""The IAM policy with the least permissions that some tools need, for the identity that calls: a role, a user.

https://docs.aws.amazon.com/service-authorization/latest/reference/list_awsstepfunctions.html has the resources and
condition keys of each action. For a version or alias the machine's ARN counts, narrowed by
`states:StateMachineQualifier`; executions inherit the tags of their machine. SendTask* has no resource on that page,
but AWS checks the machine of the token: its refusals name it, and `grantTaskResponse` of the AWS CDK allows it. It is
not documented if the machine's tags count, so they are no condition there.
"""

from __future__ import annotations

import json
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast
from urllib.parse import urlsplit

from mcp_workflows.adapter import JSON, Use
from mcp_workflows_stepfunctions.arns import REGION, Machine, Place
from mcp_workflows_stepfunctions.client import Client
from mcp_workflows_stepfunctions.machines import Machines
from mcp_workflows_stepfunctions.settings import AssumeRole, StepFunctionsSettings

ALL: Final = "*"

_TAGGED_MACHINES: Final = (
    "states:DescribeStateMachine",
    "states:ListExecutions",
    "states:StartExecution",
    "states:StartSyncExecution",
)
_TAGGED_EXECUTIONS: Final = ("states:DescribeExecution", "states:GetExecutionHistory", "states:StopExecution")
_REGION = re.compile(rf"(?:^|\.)(?P<region>{REGION})\.")  # a label of a host
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """The use of a tool with its machine, and the permissions that follow."""

    use: Use
    machine: Machine

    @property
    def express(self) -> bool:
        return self.use.options.get("express") is True

    @property
    def standard(self) -> bool:
        return not self.express

    @property
    def starts(self) -> bool:
        return self.standard and not self.use.watches

    @property
    def runs(self) -> bool:
        return self.express and not self.use.watches

    @property
    def cancels(self) -> bool:
        return self.standard and self.use.cancels

    @property
    def reads(self) -> bool:
        return self.standard and self.use.options.get("history") is not False

    @property
    def locates(self) -> bool:
        """True if a definition may be needed to find a task token."""
        return self.reads and any(not _says_where(gate.get("when")) for gate in self.use.gates.values())

    @property
    def answers(self) -> bool:
        return self.reads and self.use.answers

    @property
    def fails(self) -> bool:
        """True if an answer at a gate makes its state fail."""
        words = (gate.get(word) for gate in self.use.gates.values() for word in ("send", "decline"))
        return self.answers and any(_fails(word) for word in words)

    @property
    def aliased(self) -> bool:
        return self.machine.qualifier is not None and not self.machine.qualifier.isdigit()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """An action that some uses need, on resources of one kind."""

    sid: str
    action: str
    on: Callable[[Machine], str]
    to: Callable[[ToolUse], bool]
    qualified: bool = False  # only for the version or alias that is used


def _says_where(when: JSON) -> bool:
    """Return True if a gate's `when` has the place of the task token."""
    return isinstance(when, Mapping) and cast("Mapping[str, JSON]", when).get("token") is not None


def _fails(word: JSON) -> bool:
    """Return True if a gate's `send` or `decline` is an error."""
    return isinstance(word, Mapping) and cast("Mapping[str, JSON]", word).get("error") is not None


def _machine(machine: Machine) -> str:
    return machine.unqualified


def _executions(machine: Machine) -> str:
    return machine.execution(ALL)


GRANTS: Final[Sequence[Grant]] = (
    Grant(sid="Describe", action="states:DescribeStateMachine", on=_machine, to=lambda _: True),
    Grant(
        sid="DescribeAlias",
        action="states:DescribeStateMachineAlias",
        on=_machine,
        to=lambda needed: needed.aliased,
        qualified=True,
    ),
    Grant(
        sid="Start",
        action="states:StartExecution",
        on=_machine,
        to=lambda needed: needed.starts,
        qualified=True,
    ),
    Grant(
        sid="RunExpress",
        action="states:StartSyncExecution",
        on=_machine,
        to=lambda needed: needed.runs,
        qualified=True,
    ),
    Grant(sid="List", action="states:ListExecutions", on=_machine, to=lambda needed: needed.standard),
    Grant(sid="Look", action="states:DescribeExecution", on=_executions, to=lambda needed: needed.standard),
    Grant(sid="Read", action="states:GetExecutionHistory", on=_executions, to=lambda needed: needed.reads),
    Grant(
        sid="Locate",
        action="states:DescribeStateMachineForExecution",
        on=_executions,
        to=lambda needed: needed.locates,
    ),
    Grant(sid="Stop", action="states:StopExecution", on=_executions, to=lambda needed: needed.cancels),
    Grant(sid="Answer", action="states:SendTaskSuccess", on=_machine, to=lambda needed: needed.answers),
    Grant(sid="Decline", action="states:SendTaskFailure", on=_machine, to=lambda needed: needed.fails),
)


async def permissions(client: Client, settings: StepFunctionsSettings, uses: Sequence[Use]) -> Mapping[str, JSON]:
    """Return the policy for these uses, and for `events` and `discover` if they are set; see `Permits.permissions`.

    With `assume_role` it is for that role; the policy of its caller is logged, as it belongs to another identity.

    Raises:
        EngineRefused: a workflow does not belong to this engine.
        EngineUnavailable: the account cannot be found out.
    """
    machines = Machines(client, settings.known_account)
    needed = [ToolUse(use=use, machine=await machines.find(use.workflow)) for use in uses]
    allowed = list(_for_uses(needed))
    if settings.events is not None:
        allowed.append(_for_queue(queue_arn(settings.events.queue_url, client.region, client.partition)))
    if settings.discover is not None:
        allowed.extend(_for_tagged(await client.place(), *settings.discover.key_and_value))
    policy = policy_document(allowed)
    if (size := len(json.dumps(policy, separators=(",", ":")))) > LARGEST:
        _log.warning("this policy has %d characters, IAM takes %d: split it, one for some of the tools", size, LARGEST)
    if settings.assume_role is not None:
        _log.warning(
            "this policy is for %s; who assumes that role needs another: %s",
            settings.assume_role.arn,
            json.dumps(caller_policy(settings.assume_role, callers=_name_callers(uses))),
        )
    return policy


def _name_callers(uses: Sequence[Use]) -> bool:
    return any(use.options.get("source_identity") is not None for use in uses)


def caller_policy(role: AssumeRole, *, callers: bool = False) -> Mapping[str, JSON]:
    """Return the policy of the identity that assumes the role; `callers`: tools assume it for their callers."""
    actions = ("sts:AssumeRole", *(("sts:SetSourceIdentity",) if role.source_identity or callers else ()))
    return policy_document([Permission(sid="AssumeRole", actions=actions, resources=frozenset({role.arn}))])


def queue_arn(url: str, region: str, partition: str) -> str:
    """Return the ARN of a queue by its URL, `https://HOST/ACCOUNT/NAME`, in the Region that the host names."""
    parts = urlsplit(url)
    account, name = parts.path.strip("/").split("/")[-2:]
    host = _REGION.search(parts.hostname or "")
    return f"arn:{partition}:sqs:{host['region'] if host else region}:{account}:{name}"


def _for_uses(needed: Sequence[ToolUse]) -> Iterator[Permission]:
    for grant in GRANTS:
        entitled = [each.machine for each in needed if grant.to(each)]
        whole = frozenset(grant.on(each) for each in entitled if not (grant.qualified and each.qualifier))
        if whole:
            yield Permission(sid=grant.sid, actions=(grant.action,), resources=whole)
        narrow: dict[str, set[str]] = defaultdict(set)
        for machine in entitled:
            if grant.on(machine) not in whole:
                narrow[str(machine.qualifier)].add(grant.on(machine))
        for qualifier in sorted(narrow):
            key = "states:StateMachineQualifier"
            condition = {"ForAnyValue:StringEquals": {key: [qualifier]}}
            resources = frozenset(narrow[qualifier])
            yield Permission(sid=grant.sid, actions=(grant.action,), resources=resources, condition=condition)


def _for_queue(arn: str) -> Permission:
    actions = ("sqs:DeleteMessage", "sqs:ReceiveMessage")
    return Permission(sid="ReceiveEvents", actions=actions, resources=frozenset({arn}))


def _for_tagged(place: Place, key: str, value: str) -> Iterator[Permission]:
    """Permit all machines that are tagged now or later, with the tag as the condition."""
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
    """Actions on resources; `sid` names their purpose in a word."""

    sid: str
    actions: tuple[str, ...]
    resources: frozenset[str]
    condition: Mapping[str, Mapping[str, JSON]] | None = None


def policy_document(allowed: Iterable[Permission]) -> Mapping[str, JSON]:
    """Return the policy, as short as it can be, because IAM counts characters, and the same text each time.

    One statement has all that shares resources and condition.
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
