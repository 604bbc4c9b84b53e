"""The steps of a workflow as data: builder.py makes them from the source, and interpreter.py runs them.

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
CALL_DEPTH_LIMIT: Final = 20  # of nested subworkflows
ENTRY_LIMIT: Final = 50  # assignments of a step, conditions of a switch
BRANCH_LIMIT: Final = 10  # branches of a parallel step
CONCURRENCY_LIMIT: Final = 20  # concurrent branches or iterations of a parallel step
PARALLEL_DEPTH_LIMIT: Final = 2  # parallel in parallel
BRANCH_ERROR_LIMIT: Final = 100  # errors of branches in an UnhandledBranchError

JUMPS: Final = frozenset({"end", "continue", "break"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A variable, or a part of one, and its new value."""

    target: Name | Part
    value: Template
    at: At


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """Assignments in sequence."""

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
    """A condition of a switch, and its steps if it is the first true one."""

    condition: Template
    body: Body
    next: str | None
    at: At


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A choice by the first true condition."""

    cases: Sequence[Case]


@dataclass(frozen=True, slots=True, kw_only=True)
class For:
    """A loop over the elements of a list, or the numbers of a range including both ends."""

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
    """Concurrent branches or iterations of a loop; outer variables can be assigned only if shared."""

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
    """An error raised by the workflow."""

    error: Template


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """The end of the routine, with its result."""

    value: Template


@dataclass(frozen=True, slots=True, kw_only=True)
class Nested:
    """Nested steps; without any, nothing happens."""

    body: Body


Action: TypeAlias = Assign | Call | Switch | For | Parallel | Try | Raise | Return | Nested


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A step: its name, its action, and the next step (None: the following one)."""

    name: str
    action: Action
    next: str | None
    at: At
    inline: bool = False  # it is unnamed in another step, so nothing can jump to it


Body: TypeAlias = Sequence[Stage]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter of a routine, with its default if any."""

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
