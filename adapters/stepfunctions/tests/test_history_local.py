"""Real histories of the local engine: what is read of them, and answered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mcp_workflows_stepfunctions.gates import requests
from mcp_workflows_stepfunctions.tooling.offline import replay

from adapters.stepfunctions.tests.executions import Runs
from adapters.stepfunctions.tests.machines import asking, one_state
from mcp_workflows.adapter import Progress, Status

YES: Mapping[str, Any] = {"action": "accept", "content": {"answer": "yes"}}


def parallel(*branches: Mapping[str, Any], **more: Any) -> Mapping[str, Any]:
    return {"Type": "Parallel", "Branches": list(branches), "End": True, **more}


def test_two_branches_ask_and_each_is_answered_by_its_key(run: Runs) -> None:
    it = run(one_state("Both", parallel(one_state("A", asking("A?")), one_state("B", asking("B?")))))
    first, second = it.asked(2)
    it.answer(first, YES)
    assert it.asked() == [second]
    it.answer(second, {"action": "decline"})
    assert it.end()["status"] == "SUCCEEDED"
    told = sorted(json.loads(it.end()["output"]), key=lambda each: str(each["action"]))
    assert told == [YES, {"action": "decline", "content": {}}]
    assert it.fold().waiting == {}


def test_a_question_that_is_tried_again_has_a_new_key(run: Runs) -> None:
    retry = [{"ErrorEquals": ["Broken"], "IntervalSeconds": 1, "MaxAttempts": 3, "BackoffRate": 1}]
    it = run(one_state("A", {**asking("A?"), "Retry": retry}))
    [first] = it.asked()
    it.fail(first, "Broken")
    it.until(lambda found: bool(found.waiting) and first not in map(str, found.waiting))
    [second] = it.asked()
    assert int(second) > int(first)


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


def test_items_one_after_the_other_are_counted(run: Runs) -> None:
    each = {
        "Type": "Map",
        "ItemsPath": "$",
        "MaxConcurrency": 1,
        "ItemProcessor": one_state("A", asking("A?")),
        "End": True,
    }
    it = run(one_state("Each", each), [1, 2])
    [first] = it.asked()
    it.answer(first, YES)
    it.until(lambda found: found.progress == Progress(value=1, total=2) and bool(found.waiting))
    [second] = it.asked()
    it.answer(second, YES)
    assert it.end()["status"] == "SUCCEEDED"


def test_a_branch_that_fails_takes_the_question_of_the_other_away(run: Runs) -> None:
    fails = {
        "StartAt": "Wait",
        "States": {
            "Wait": {"Type": "Wait", "Seconds": 1, "Next": "No"},
            "No": {"Type": "Fail", "Error": "No", "Cause": "no"},
        },
    }
    caught = [{"ErrorEquals": ["States.ALL"], "Next": "Rescue"}]
    both = parallel(one_state("A", asking("A?")), fails, Catch=caught)
    it = run({"StartAt": "Both", "States": {"Both": both, "Rescue": asking("Rescue?")}})
    it.asked()
    found = it.until(lambda found: found.state == "Rescue" and bool(found.waiting))
    assert [request.params["message"] for request in requests(found, {}).values()] == ["Rescue?"]
    [key] = it.asked()
    it.answer(key, YES)
    assert it.end()["status"] == "SUCCEEDED"


def test_a_parallel_that_is_tried_again_asks_again(run: Runs) -> None:
    retry = [{"ErrorEquals": ["Broken"], "IntervalSeconds": 1, "MaxAttempts": 1, "BackoffRate": 1}]
    it = run(one_state("Both", parallel(one_state("A", asking("A?")), one_state("B", asking("B?")), Retry=retry)))
    before = it.asked(2)
    it.fail(before[0], "Broken")
    found = it.until(lambda found: len(found.waiting) == 2 and not set(map(str, found.waiting)) & set(before))
    assert sorted(each.state for each in found.waiting.values()) == ["A", "B"]
    it.stop()


def test_a_question_that_nobody_answers_goes_with_its_state(run: Runs) -> None:
    caught = [{"ErrorEquals": ["States.Timeout"], "Next": "Late"}]
    it = run(
        {
            "StartAt": "A",
            "States": {"A": {**asking("A?"), "TimeoutSeconds": 1, "Catch": caught}, "Late": {"Type": "Succeed"}},
        }
    )
    it.asked()
    assert (it.end()["status"], it.fold().state) == ("SUCCEEDED", "Late")


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


def test_a_stopped_execution_asks_nothing(run: Runs) -> None:
    it = run(one_state("A", asking("A?")))
    it.asked()
    it.stop()
    assert (it.fold().waiting, it.fold().ended) == ({}, True)
    last = replay({"events": it.history()}, {})[-1].execution
    assert (last.status, last.message) == (Status.CANCELLED, "aborted: Tests.Stopped: enough")


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
