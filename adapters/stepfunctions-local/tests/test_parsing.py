"""Definitions of both query languages that the local engine parses at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.support.local_machines import PASS, code, only
from tests.support.stepfunctions_engine import StepFunctions

AT_ONCE = 12
STATES = 40  # so that parsing them takes long enough to be interrupted


def chain(state: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A definition of many such states, one after the other."""
    states = {f"S{n}": {**state, "Next": f"S{n + 1}"} for n in range(STATES)}
    return {"StartAt": "S0", "States": {**states, f"S{STATES}": {"Type": "Succeed"}}, **more}


def test_executions_that_start_together_do_not_read_each_others_query_language(stepfunctions: StepFunctions) -> None:
    client = stepfunctions.client()
    path = stepfunctions.machine(chain({"Type": "Pass", "Parameters": {"who.$": "$.who"}}))
    jsonata = stepfunctions.machine(chain({"Type": "Pass", "Output": {"who": "Ada"}}, QueryLanguage="JSONata"))

    def start(number: int) -> Any:
        arn = (path, jsonata)[number % 2]
        return client.start_execution(stateMachineArn=arn, input='{"who": "Ada"}')["executionArn"]

    with ThreadPoolExecutor(AT_ONCE) as pool:
        executions = list(pool.map(start, range(AT_ONCE)))
    assert {stepfunctions.ended(execution)["status"] for execution in executions} == {"SUCCEEDED"}


def test_a_definition_that_is_refused_does_not_spoil_the_next(stepfunctions: StepFunctions) -> None:
    mixed = only({"Type": "Pass", "Parameters": {}}, QueryLanguage="JSONata")
    with pytest.raises(ClientError) as error:
        stepfunctions.machine(mixed)
    assert code(error.value) == "InvalidDefinition"
    stepfunctions.machine(only({"Type": "Pass", "Parameters": {}}))
    stepfunctions.machine(PASS)
