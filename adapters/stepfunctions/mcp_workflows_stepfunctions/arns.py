"""Amazon Resource Names of state machines and executions, parsed and built.

Source: https://docs.aws.amazon.com/step-functions/latest/dg/concepts-amazon-resource-names.html, and the shapes in
botocore's model of the API.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from mcp_workflows.errors import EngineRefused

REGION = r"[a-z]{2,4}(?:-[a-z]+)+-[0-9]+"
_PLACE = rf"arn:(?P<partition>aws[a-z-]*):states:(?P<region>{REGION}):(?P<account>[0-9]{{12}})"
_NAMED = r"(?P<name>[^\s\x00-\x1f\x7f-\x9f:/?*<>{}\[\]\"#%\\^|~`$&,;]{1,80})(?::(?P<qualifier>[A-Za-z0-9_.-]{1,80}))?"
_NAME = re.compile(_NAMED, re.ASCII)
_MACHINE = re.compile(f"{_PLACE}:stateMachine:{_NAMED}", re.ASCII)
_TEXT = r"[^\s\x00-\x1f\x7f-\x9f"
_EXECUTION = re.compile(
    rf"{_PLACE}:(?P<kind>execution|express):(?P<machine>{_TEXT}:/]{{1,80}})(?:/(?P<label>{_TEXT}:/]{{1,80}}))?"
    rf":(?P<name>{_TEXT}]{{1,200}})"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The partition, Region and account of state machines."""

    partition: str
    region: str
    account: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A state machine, or one of its versions (`:3`) or aliases (`:PROD`)."""

    place: Place
    name: str
    qualifier: str | None = None  # version or alias

    @property
    def arn(self) -> str:
        """The ARN for starts."""
        return self.unqualified + (f":{self.qualifier}" if self.qualifier else "")

    @property
    def unqualified(self) -> str:
        """The ARN of the machine itself, without a version or alias."""
        return f"{_prefix(self.place)}:stateMachine:{self.name}"

    def execution(self, name: str) -> str:
        """Return the ARN of an execution of the machine; names are unique in the whole machine."""
        return f"{_prefix(self.place)}:execution:{self.name}:{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionArn:
    """A parsed execution ARN."""

    place: Place
    machine: str
    name: str
    express: bool
    label: str | None = None  # the distributed Map of this child

    @classmethod
    def parse(cls, arn: str) -> Self:
        """Parse an execution ARN.

        Raises:
            EngineRefused: the text is not an execution ARN.
        """
        found = _EXECUTION.fullmatch(arn)
        if found is None:
            raise EngineRefused(
                "this is no execution ARN; write arn:aws:states:REGION:ACCOUNT:execution:MACHINE:NAME", final=True
            )
        return cls(
            place=_place(found),
            machine=found["machine"],
            name=found["name"],
            express=found["kind"] == "express",
            label=found["label"],
        )


def _place(found: re.Match[str]) -> Place:
    return Place(partition=found["partition"], region=found["region"], account=found["account"])


def _prefix(place: Place) -> str:
    return f"arn:{place.partition}:states:{place.region}:{place.account}"


def is_machine_arn(workflow: str) -> bool:
    """Return True if a workflow is written as an ARN, valid or not, rather than a name."""
    return workflow.startswith("arn:")


def parse_machine(workflow: str) -> Machine:
    """Return a state machine by its ARN.

    Raises:
        EngineRefused: the text is not an ARN of a state machine, version or alias.
    """
    found = _MACHINE.fullmatch(workflow)
    if found is None:
        raise EngineRefused(
            f"{workflow!r} is no state machine ARN; write arn:aws:states:REGION:ACCOUNT:stateMachine:NAME, with "
            ":VERSION or :ALIAS if you like, or the name alone",
            final=True,
        )
    return Machine(place=_place(found), name=found["name"], qualifier=found["qualifier"])


def machine_by_name(workflow: str, place: Place) -> Machine:
    """Return a state machine by its name, `name:alias` or `name:version`, at this place.

    Raises:
        EngineRefused: it cannot be the name of a state machine.
    """
    found = _NAME.fullmatch(workflow)
    if found is None:
        raise EngineRefused(
            f"{workflow!r} cannot be the name of a state machine: 1 to 80 characters, without spaces, brackets or any "
            'of "#%\\^|~`$&,;/?*',
            final=True,
        )
    return Machine(place=place, name=found["name"], qualifier=found["qualifier"])
