"""Fixtures of the Step Functions adapter's tests: nothing of this machine's AWS configuration counts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import pytest
from mcp_workflows_stepfunctions import StepFunctionsAdapter

from adapters.stepfunctions.tests import cloud as local
from adapters.stepfunctions.tests.executions import Run, Runs, start
from tests.support.stepfunctions_engine import StepFunctions


@pytest.fixture(autouse=True)
def aws(any_aws_credentials: None) -> None:
    """No AWS configuration of this machine."""


@pytest.fixture
async def adapter(stepfunctions: StepFunctions) -> AsyncIterator[StepFunctionsAdapter]:
    """In front of the local engine."""
    async with local.adapter(stepfunctions) as adapter:
        yield adapter


@pytest.fixture
def cloud(stepfunctions: StepFunctions) -> local.StepFunctionsCloud:
    """The same, for the shared suites."""
    return local.StepFunctionsCloud(stepfunctions)


@pytest.fixture
def own_cloud(own_stepfunctions: StepFunctions) -> local.StepFunctionsCloud:
    """One to kill."""
    return local.StepFunctionsCloud(own_stepfunctions)


@pytest.fixture
def run(stepfunctions: StepFunctions) -> Iterator[Runs]:
    """Starts a state machine of a definition with an input; whatever still runs is stopped in the end."""
    runs: list[Run] = []

    def begin(definition: Mapping[str, Any], given: Any = None) -> Run:
        runs.append(start(stepfunctions, definition, {} if given is None else given))
        return runs[-1]

    yield begin
    for each in runs:
        each.stop()
