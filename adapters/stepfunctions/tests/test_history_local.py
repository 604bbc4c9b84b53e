"""Real histories of the local engine: what is read of them, and answered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mcp_workflows_stepfunctions.gates import requests
from mcp_workflows_stepfunctions.tooling.offline import replay

from adapters.stepfunctions.tests.cloud import asking, one_state
from adapters.stepfunctions.tests.executions import Runs
from mcp_workflows.adapter import Progress, Status

YES: Mapping[str, Any] = {"action": "accept", "content": {"answer": "yes"}}


def test_questions_in_a_map_are_told_with_its_progress(run: Runs) -> None:
    machine = one_state(
        "Each", {"Type": "Map", "ItemsPath": "$", "ItemProcessor": one_state("A", asking("A?")), "End": True}
    )
    it = run(machine, [1, 2, 3])
    first, *others = it.asked(3)
    assert it.fold().progress == Progress(value=0, total=3)
    it.answer(first, YES)
    found = it.until(lambda found: found.progress == Progress(value=1, total=3))
    assert list(requests(found, {})) == others
    for key in others:
        it.answer(key, YES)
    assert (it.end()["status"], it.fold().progress) == ("SUCCEEDED", None)


def test_a_redriven_execution_asks_again_under_another_key(run: Runs) -> None:
    each = {"Type": "Map", "ItemsPath": "$", "ItemProcessor": one_state("A", asking("A?")), "End": True}
    it = run(one_state("Each", each), [1, 2])
    first, second = it.asked(2)
    it.answer(first, YES)
    it.fail(second, "Broken")
    it.end()
    assert (it.fold().waiting, it.fold().ended) == ({}, True)
    it.engine.client().redrive_execution(executionArn=it.arn)
    answered: set[int] = set()
    while not (found := it.until(lambda found: found.ended or bool(set(found.waiting) - answered))).ended:
        event = next(event for event in found.waiting if event not in answered)
        assert event > int(second)
        assert found.progress is not None
        it.answer(str(event), YES)
        answered.add(event)
    assert it.end()["status"] == "SUCCEEDED"


def test_an_export_is_replayed_as_clients_saw_it(run: Runs) -> None:
    it = run(one_state("A", asking("A?")))
    [key] = it.asked()
    it.answer(key, YES)
    it.end()
    exported = json.loads(json.dumps({"events": it.history()[::-1]}, default=str))  # newest first: any order will do
    told = [
        (each.execution.status, each.execution.message, list(each.execution.requests)) for each in replay(exported, {})
    ]
    assert told == [
        (Status.RUNNING, None, []),
        (Status.RUNNING, "A", []),
        (Status.INPUT_REQUIRED, "A", [key]),
        (Status.RUNNING, "A", []),
        (Status.SUCCEEDED, None, []),
    ]
    assert replay(exported, {})[-1].execution.output == YES


def test_the_steps_are_the_states_that_were_entered(run: Runs) -> None:
    caught = {**asking("A?"), "Catch": [{"ErrorEquals": ["Broken"], "Next": "B"}], "Next": "B"}
    caught.pop("End", None)
    machine = {
        "StartAt": "First",
        "States": {"First": {"Type": "Pass", "Next": "A"}, "A": caught, "B": asking("B?")},
    }
    it = run(machine)
    [first] = it.asked()
    assert [(step.name, step.status) for step in it.fold().steps] == [
        ("First", Status.SUCCEEDED),
        ("A", Status.RUNNING),
    ]
    it.fail(first, "Broken")
    it.until(lambda found: found.state == "B" and bool(found.waiting))
    steps = it.fold().steps
    assert [(step.name, step.status) for step in steps] == [
        ("First", Status.SUCCEEDED),
        ("A", Status.FAILED),
        ("B", Status.RUNNING),
    ]
    assert None not in {step.at for step in steps}
