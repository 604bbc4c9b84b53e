"""The steps of a workflow, as data: what builder.py makes of the source and interpreter.py runs.

Source: https://cloud.google.com/workflows/docs/reference/syntax
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from mcp_workflows_google_local.language.evaluator import Template
from mcp_workflows_google_local.language.library_retry import Backoff, Policy
from mcp_workflows_google_local.language.nodes import Name, Part
from mcp_workflows_google_local.language.yaml_nodes import At

STEP_LIMIT: Final = 100_000  # of one execution
CALL_DEPTH_LIMIT: Final = 20  # of subworkflows in subworkflows
ENTRY_LIMIT: Final = 50  # assignments of a step, conditions of a switch
BRANCH_LIMIT: Final = 10  # branches of a parallel step
CONCURRENCY_LIMIT: Final = 20  # branches or iterations of a parallel step at once
PARALLEL_DEPTH_LIMIT: Final = 2  # parallel in parallel
BRANCH_ERROR_LIMIT: Final = 100  # errors of branches that an UnhandledBranchError tells

JUMPS: Final = frozenset({"end", "continue", "break"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One variable, or a part of one, and its new value."""

    target: Name | Part
    value: Template
    at: At


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """Assignments, one after the other."""

    assignments: Sequence[Assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A function or subworkflow with arguments by name."""

    name: str
    arguments: Mapping[str, Template]
    result: str | None
    at: At


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A condition of a switch, and what is done if it is the first that is true."""

    condition: Template
    body: Body
    next: str | None
    at: At


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """The first condition that is true decides."""

    cases: Sequence[Case]


@dataclass(frozen=True, slots=True, kw_only=True)
class For:
    """Over the elements of a list, or the numbers of a range, both ends included."""

    value: str
    index: str | None
    over: Template | None
    range: Template | None
    body: Body
    at: At


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A branch of a parallel step."""

    name: str
    body: Body


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """Branches, or the iterations of a loop, at once; only shared variables of outside may be assigned."""

    shared: Mapping[str, At]
    limit: Template | None
    branches: Sequence[Branch]
    loop: For | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """A policy made of expressions."""

    predicate: str
    max_retries: Template
    backoff: Backoff | Mapping[str, Template]
    at: At


@dataclass(frozen=True, slots=True, kw_only=True)
class Except:
    """The steps that handle an error."""

    name: str | None
    body: Body


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """Steps whose errors are retried, and then caught."""

    body: Body
    retry: Retry | Policy | None
    caught: Except | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Raise:
    """An error of the workflow's own."""

    error: Template


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """The end of the routine, with its result."""

    value: Template


@dataclass(frozen=True, slots=True, kw_only=True)
class Nested:
    """Steps in a step; none: nothing happens."""

    body: Body


Action: TypeAlias = Assign | Call | Switch | For | Parallel | Try | Raise | Return | Nested


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A step: its name, what it does, and where it goes on (None: at the next one)."""

    name: str
    action: Action
    next: str | None
    at: At
    inline: bool = False  # it stands in another step without a name of its own: nothing can jump to it


Body: TypeAlias = Sequence[Stage]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter of a routine; its default if it has one."""

    name: str
    default: Template | None
    at: At


@dataclass(frozen=True, slots=True, kw_only=True)
class Routine:
    """main or a subworkflow."""

    name: str
    parameters: Sequence[Parameter]
    body: Body
    at: At
