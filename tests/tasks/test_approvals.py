"""Approvals by somebody else: before anything is started, and at a gate; the first decision counts."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import ValidationError

from mcp_workflows import TaskSupport, Tool
from mcp_workflows.access import Principal
from mcp_workflows.access.audit import Record
from mcp_workflows.adapter import Execution, Ref
from mcp_workflows.adapter.memory import MemoryExecution, Script, ScriptedAdapter
from mcp_workflows.store.protocol import open_store
from mcp_workflows.task import SHORTEST_PAUSE, START_KEY
from mcp_workflows.tasks.approvals import decision_of
from mcp_workflows.tasks.executions import DECIDING
from mcp_workflows.tools.tool import OnExpire, WatchTool
from mcp_workflows.units import utc_now
from tests.support.served import Peer, peer, site
from tests.support.waiting import TIMEOUT, until

pytestmark = pytest.mark.anyio

ANNA, BOB, EVE, DIRECTOR = "anna", "bob+approve", "eve", "dora+direct"
BLOCK: Mapping[str, Any] = {
    "before_start": True,
    "message": "Deploy {{version}} to production?",
    "approvers": {"scopes": ["approve"]},
}
YES = {"action": "accept", "content": {"reason": "tested"}}
NO = {"action": "decline"}


def start(response: Any) -> Mapping[str, Any]:
    """The response to the question whether to start."""
    return {START_KEY: response}


def deploying(**block: Any) -> Tool:
    return Tool.model_validate(
        {"name": "deploy", "engine": "memory", "workflow": "deploy", "approval": {**BLOCK, **block}}
    )


@asynccontextmanager
async def served(
    folder: Path,
    script: Script,
    *tokens: str,
    tool: Tool | None = None,
    records: list[Record] | None = None,
    adapter: ScriptedAdapter | None = None,
) -> AsyncGenerator[list[Peer]]:
    """A server of the tool, and a client for each token."""
    async with AsyncExitStack() as stack:
        found = await stack.enter_async_context(
            site(
                store=f"sqlite:///{folder}/tasks.db",
                tools=[tool or deploying()],
                adapters={"memory": adapter or ScriptedAdapter(script)},
                authenticated=True,
                audit=(records if records is not None else list[Record]()).append,
            )
        )
        yield [await stack.enter_async_context(peer(found.url, token=token)) for token in tokens]


async def test_nothing_is_started_before_the_approval(tmp_path: Path) -> None:
    script, records = Script(), list[Record]()
    script.succeed({"deployed": True})
    async with served(tmp_path, script, ANNA, BOB, EVE, records=records) as [anna, bob, eve]:
        created = (await anna.call("deploy", {"version": "1.4", "note": "hot «fix»"})).result
        task_id = created["taskId"]
        assert created["status"] == "working"
        assert created["statusMessage"].startswith("waits for approve: Deploy")
        asked = await bob.get(task_id)
        assert asked["status"] == "input_required"
        params = asked["inputRequests"][START_KEY]["params"]
        assert params["message"] == 'Deploy «1.4» to production?\n- version: "1.4"\n- note: "hot «fix»"'
        assert list(params["requestedSchema"]["properties"]) == ["reason"]
        assert (await eve.send("tasks/get", {"taskId": task_id})).code == -32602
        for refused in (await anna.answer(task_id, **start(YES)), await eve.answer(task_id, **start(YES))):
            assert refused.code == -32602
        assert script.starts == []
        assert (await bob.answer(task_id, **start(YES))).status == 200
        ended = await anna.until(task_id)
        assert ended["status"] == "completed"
        assert [start.arguments for start in script.starts] == [[{"version": "1.4", "note": "hot «fix»"}]]
        again = await bob.answer(task_id, **start(NO))
    assert again.code == -32602, "who may only approve sees nothing more of it"
    [answer] = [record for record in records if record.event == "answer"]
    assert answer.subject == "bob"
    assert answer.reason is not None
    assert answer.reason.startswith(".approval: accept; arguments ")
    assert answer.reason.endswith("why: tested")


async def test_an_approver_whose_model_may_not_answer_reads_so_and_answers_in_a_client_with_tasks(
    tmp_path: Path,
) -> None:
    script = Script()
    script.succeed({})
    tool = deploying().model_copy(update={"model_may_answer": False})
    async with served(tmp_path, script, ANNA, BOB, tool=tool) as [anna, bob]:
        task_id = (await anna.call("deploy", {"version": "1.4"})).result["taskId"]
        plain = replace(bob, capabilities={})
        listed = (await plain.call("open_questions")).result
        assert "only a person answers this" in listed["content"][0]["text"]
        assert "task_answer" not in listed["content"][0]["text"]
        [row] = listed["structuredContent"]["tasks"]
        assert row["questions"][START_KEY]["canAnswer"] is False
        refused = (await plain.call("task_answer", {"taskId": task_id, "content": {}})).result
        assert refused["isError"]
        assert script.starts == []
        assert (await bob.answer(task_id, **start(YES))).status == 200
        await anna.until(task_id)
    assert len(script.starts) == 1


async def test_a_refusal_ends_the_task_with_who_and_why(tmp_path: Path) -> None:
    script = Script()
    async with served(tmp_path, script, ANNA, BOB) as [anna, bob]:
        task_id = (await anna.call("deploy", {"version": "1.4"})).result["taskId"]
        await bob.answer(task_id, **start({**NO, "content": {"reason": "not on Friday"}}))
        ended = await anna.until(task_id)
    assert (ended["status"], ended["result"]["isError"]) == ("completed", True)
    text = ended["result"]["content"][0]["text"]
    assert text.startswith("declined by bob at ")
    assert text.endswith("UTC: not on Friday")
    assert script.starts == []


async def test_a_cancelled_request_is_never_started(tmp_path: Path) -> None:
    script = Script()
    async with served(tmp_path, script, ANNA, BOB) as [anna, bob]:
        task_id = (await anna.call("deploy", {"version": "1.4"})).result["taskId"]
        await anna.send("tasks/cancel", {"taskId": task_id})
        assert (await anna.until(task_id))["status"] == "cancelled"
        assert (await bob.answer(task_id, **start(YES))).code == -32602
    assert script.starts == []


async def test_a_yes_after_a_cancellation_does_not_count_as_one(tmp_path: Path) -> None:
    async with served(tmp_path, Script(), BOB, tool=deploying(requester_may_approve=True)) as [bob]:
        task_id = (await bob.call("deploy", {"version": "1.4"})).result["taskId"]
        await bob.send("tasks/cancel", {"taskId": task_id})
        late = await bob.answer(task_id, **start(YES))
    assert (late.code, late.error["message"]) == (-32602, "It was cancelled before this decision: nothing was applied")


async def test_equal_calls_are_one_request_for_as_long_as_nobody_has_decided(tmp_path: Path) -> None:
    window = timedelta(milliseconds=100)
    tool = deploying().model_copy(update={"dedupe": window})
    async with served(tmp_path, Script(), ANNA, BOB, tool=tool) as [anna, bob]:
        first = (await anna.call("deploy", {"version": "1.4"})).result["taskId"]
        over = utc_now() + window
        await until(lambda: utc_now() > over)
        assert (await anna.call("deploy", {"version": "1.4"})).result["taskId"] == first
        await bob.answer(first, **start(NO))
        assert (await anna.call("deploy", {"version": "1.4"})).result["taskId"] != first


async def test_a_refusal_that_does_not_work_delays_no_end_of_the_time_to_live(tmp_path: Path) -> None:
    script = Script()
    script.open_gate("release")
    script.engine.faults.unavailable = frozenset({"answer"})
    soon = {"approvers": {"scopes": ["approve"]}, "after": {"in": "100ms", "then": "decline"}}
    tool = gated(approval=soon).model_copy(update={"ttl": timedelta(seconds=4), "on_expire": OnExpire.CANCEL})
    async with served(tmp_path, script, ANNA, tool=tool) as [anna]:
        task_id = (await anna.call("deploy", {"version": "1.4"})).result["taskId"]
        await anna.until(task_id, "working", "input_required")
        await until(lambda: bool(script.cancelled), within=SHORTEST_PAUSE.total_seconds() / 2)


async def test_of_many_decisions_at_once_one_counts(tmp_path: Path) -> None:
    script = Script()
    script.succeed({})
    tokens = [f"person{number}+approve" for number in range(6)]
    async with served(tmp_path, script, ANNA, *tokens) as [anna, *people]:
        task_id = (await anna.call("deploy", {"version": "1.4"})).result["taskId"]
        replies: list[Any] = []

        async def decide(number: int) -> None:
            replies.append(await people[number].answer(task_id, **start(YES if number % 2 else NO)))

        async with anyio.create_task_group() as group:
            for number in range(6):
                group.start_soon(decide, number)
        taken = [reply for reply in replies if "result" in reply.body]
        ended = await anna.until(task_id)
    assert len(taken) == 1
    assert len(script.starts) == (ended["status"] == "completed" and not ended["result"]["isError"])


async def test_a_restart_keeps_the_request_and_an_approved_one_is_started_once(tmp_path: Path) -> None:
    script = Script()
    script.succeed({})
    async with served(tmp_path, script, ANNA) as [anna]:
        ids = [(await anna.call("deploy", {"version": str(number)})).result["taskId"] for number in range(2)]
    script.go_down()
    async with served(tmp_path, script, ANNA, BOB) as [anna, bob]:
        assert (await bob.answer(ids[0], **start(YES))).status == 200
        assert script.starts == []
        script.come_back()
        await anna.until(ids[0])
        assert (await anna.get(ids[1]))["status"] == "working"
    assert len(script.starts) == 1


async def test_a_tool_that_has_changed_and_a_requester_without_rights_are_not_started(tmp_path: Path) -> None:
    script = Script()
    async with served(tmp_path, script, ANNA) as [anna]:
        task_id = (await anna.call("deploy", {"version": "1.4"})).result["taskId"]
    changed = deploying().model_copy(update={"workflow": "another"})
    closed = Tool.model_validate(
        {
            **deploying().model_dump(exclude_unset=True, by_alias=True),
            "allow": {"call": {"scopes": ["admin"]}, "see": {}},
        }
    )
    for tool, said in ((changed, "has changed since"), (closed, "may no longer call deploy")):
        async with served(tmp_path, script, BOB, tool=tool) as [bob]:
            refused = await bob.answer(task_id, **start(YES))
            assert (refused.code, said in refused.error["message"]) == (-32602, True)
    async with served(tmp_path, script, ANNA, BOB) as [anna, bob]:
        assert (await anna.get(task_id))["status"] == "working"
        await bob.answer(task_id, **start(NO))
        assert (await anna.until(task_id))["result"]["isError"]
    assert script.starts == []


@pytest.mark.parametrize("may", [True, False])
async def test_the_requester_approves_only_if_the_tool_says_so(tmp_path: Path, may: bool) -> None:
    script = Script()
    async with served(tmp_path, script, BOB, tool=deploying(requester_may_approve=may)) as [bob]:
        created = (await bob.call("deploy", {"version": "1.4"})).result
        assert created["status"] == ("input_required" if may else "working")
        answered = await bob.answer(created["taskId"], **start(YES))
        assert ("result" in answered.body) is may
    assert len(script.starts) == may


async def test_silence_declines_or_escalates_and_never_approves(tmp_path: Path) -> None:
    script = Script()
    soon = {"in": "500ms", "then": "decline"}
    async with served(tmp_path, script, ANNA, tool=deploying(after=soon)) as [anna]:
        task_id = (await anna.call("deploy", {"version": "1.4"})).result["taskId"]
        text = (await anna.until(task_id))["result"]["content"][0]["text"]
        assert text.startswith("declined as nobody decided in time at ")
    later = {"in": "500ms", "then": {"escalate": {"scopes": ["direct"]}}}
    async with served(tmp_path, script, ANNA, BOB, DIRECTOR, tool=deploying(after=later)) as [anna, bob, director]:
        task_id = (await anna.call("deploy", {"version": "1.4"})).result["taskId"]

        async def is_escalated() -> bool:
            return "result" in (await director.send("tasks/get", {"taskId": task_id})).body

        while not await is_escalated():
            await anyio.sleep(0.05)
        assert (await anna.get(task_id))["statusMessage"].startswith("waits for approve or direct: ")
        assert (await bob.get(task_id))["status"] == "input_required"
        assert (await director.answer(task_id, **start(YES))).status == 200
    assert len(script.starts) == 1


async def test_a_required_reason_is_needed(tmp_path: Path) -> None:
    script = Script()
    async with served(tmp_path, script, ANNA, BOB, tool=deploying(reason="required")) as [anna, bob]:
        task_id = (await anna.call("deploy", {"version": "1.4"})).result["taskId"]
        for content in ({}, {"reason": ""}):
            assert (await bob.answer(task_id, **start({"action": "accept", "content": content}))).code == -32602
        assert (await bob.answer(task_id, **start(YES))).status == 200
        await until(lambda: bool(script.starts))


@pytest.mark.parametrize("blank", [" ", "\u200b\u200d", "\u2800\n"])
async def test_a_blank_reason_is_no_reason(tmp_path: Path, blank: str) -> None:
    said = {"action": "accept", "content": {"reason": blank}}
    for name, tool in (
        ("start", deploying(reason="required")),
        ("gate", gated(approval={"approvers": {"scopes": ["approve"]}, "reason": "required"})),
    ):
        script = Script()
        script.open_gate("release")
        (tmp_path / name).mkdir()
        async with served(tmp_path / name, script, ANNA, BOB, tool=tool) as [anna, bob]:
            task_id = (await anna.call("deploy", {"version": "1.4"})).result["taskId"]
            [key] = (await bob.get(task_id))["inputRequests"]
            assert (await bob.answer(task_id, **{key: said})).code == -32602
            told = (await bob.call("task_answer", {"taskId": task_id, **said})).result
            assert (told["isError"], "`reason` is blank" in told["content"][0]["text"]) == (True, True)
            assert (await bob.answer(task_id, **{key: YES})).status == 200


async def test_a_decline_by_a_task_tool_has_its_reason_although_the_tool_gives_no_handles(tmp_path: Path) -> None:
    tool = deploying().model_copy(update={"tasks": TaskSupport.REQUIRED})
    async with served(tmp_path, Script(), ANNA, BOB, tool=tool) as [anna, bob]:
        task_id = (await anna.call("deploy", {"version": "1.4"})).result["taskId"]
        asked = (await bob.call("open_questions")).result["structuredContent"]
        assert asked["next"].endswith('"action": "decline", and content {"reason": ...} if the user gives a reason')
        said = {"action": "decline", "content": {"reason": "not on\nFriday"}}
        await bob.call("task_answer", {"taskId": task_id, **said})
        assert (await anna.until(task_id))["result"]["content"][0]["text"].endswith(" UTC: not on Friday")


async def test_a_workflow_cannot_ask_under_the_key_of_the_start(tmp_path: Path) -> None:
    script = Script()
    script.ask("May I?", key="approval")
    script.ask("And now?", key=START_KEY)
    async with served(tmp_path, script, ANNA, BOB) as [anna, bob]:
        task_id = (await anna.call("deploy", {"version": "1.4"})).result["taskId"]
        await bob.answer(task_id, **start(YES))
        assert list((await anna.until(task_id, "input_required"))["inputRequests"]) == ["approval"]
        await anna.answer(task_id, approval={"action": "accept", "content": {}})
        with anyio.fail_after(TIMEOUT):
            while "is reserved" not in (await anna.get(task_id)).get("statusMessage", ""):
                await anyio.sleep(0.05)


async def test_an_argument_cannot_look_like_another_one(tmp_path: Path) -> None:
    async with served(tmp_path, Script(), ANNA, BOB) as [anna, bob]:
        arguments = {"version": "1.4\n- note: none", "x\n- version": "9", "note": "\u202eevil"}
        task_id = (await anna.call("deploy", arguments)).result["taskId"]
        message = (await bob.get(task_id))["inputRequests"][START_KEY]["params"]["message"]
    assert [line.partition(":")[0] for line in message.splitlines()[-3:]] == [
        "- version",
        '- "x\\n- version"',
        "- note",
    ]
    assert message.splitlines()[-1] == '- note: "\\u202eevil"'


async def test_what_an_approver_cannot_see_whole_is_refused(tmp_path: Path) -> None:
    script = Script()
    async with served(tmp_path, script, ANNA) as [anna]:
        refused = (await anna.call("deploy", {"version": "1.4", "script": "x" * 4000})).result
    assert refused["isError"]
    assert "too long to be approved" in refused["content"][0]["text"]


async def test_escalated_requests_wait_for_ever_and_cancelled_ones_for_nothing(tmp_path: Path) -> None:
    later = {"in": "1s", "then": {"escalate": {"scopes": ["direct"]}}}
    async with served(tmp_path, Script(), ANNA, tool=deploying(after=later)) as [anna]:
        assert (await anna.call("deploy", {"version": "1.4"})).result["ttlMs"] is None


async def test_a_message_with_a_gap_starts_and_asks_nothing(tmp_path: Path) -> None:
    script = Script()
    async with served(tmp_path, script, ANNA) as [anna]:
        refused = (await anna.call("deploy", {})).result
    assert refused["isError"]
    assert "version must be given: a person is asked to approve it" in refused["content"][0]["text"]


RELEASE: Mapping[str, Any] = {
    "message": "Release {{version}}?",
    "when": "release",
    "send": {"ok": True, "why": "{{answer.reason}}", "by": "{{principal.subject}}"},
    "decline": {"ok": False},
    "approval": {"approvers": {"scopes": ["approve"]}, "after": {"in": "1d", "then": "decline"}},
}
COLOUR: Mapping[str, Any] = {
    "message": "Which colour?",
    "when": "colour",
    "schema": {"type": "string"},
    "send": "{{answer}}",
}


def gated(**release: Any) -> Tool:
    """A workflow with a gate that somebody else approves, and one for the owner."""
    questions = {"release": {**RELEASE, **release}, "colour": COLOUR}
    return Tool.model_validate({"name": "deploy", "engine": "memory", "workflow": "deploy", "questions": questions})


GATED = gated()


async def test_an_approval_midway_is_for_the_approvers_and_other_questions_for_the_owner(tmp_path: Path) -> None:
    script, records = Script(), list[Record]()
    script.open_gate("colour")
    script.open_gate("release")
    script.succeed({"released": True})
    async with served(tmp_path, script, ANNA, BOB, EVE, tool=GATED, records=records) as [anna, bob, eve]:
        task_id = (await anna.call("deploy", {"version": "1.4"})).result["taskId"]
        asked = await anna.until(task_id, "input_required")
        [colour] = asked["inputRequests"]
        assert (await bob.send("tasks/get", {"taskId": task_id})).code == -32602
        assert (
            await bob.answer(task_id, **{colour: {"action": "accept", "content": {"colour": "red"}}})
        ).code == -32602
        await anna.answer(task_id, **{colour: {"action": "accept", "content": {"colour": "red"}}})
        [release] = (await bob.get(task_id))["inputRequests"]
        assert (await anna.get(task_id))["statusMessage"] == "waits for approve: Release «1.4»?"
        for refused in (await anna.answer(task_id, **{release: YES}), await eve.answer(task_id, **{release: YES})):
            assert refused.code == -32602
        assert (await bob.answer(task_id, **{release: YES})).status == 200
        assert (await anna.until(task_id))["status"] == "completed"
    assert script.answers[-1]["send"] == {"ok": True, "why": "tested", "by": "bob"}
    reasons = [record.reason for record in records if record.event == "answer" and record.subject == "bob"]
    assert [str(reason).endswith("; why: tested") for reason in reasons] == [True]


async def test_the_first_look_at_a_new_question_is_within_the_rights_on_that_question(tmp_path: Path) -> None:
    script = Script()
    async with served(tmp_path, script, ANNA, BOB, tool=GATED) as [anna, bob]:
        first, second = [(await anna.call("deploy", {"version": v})).result["taskId"] for v in "12"]
        script.open_gate("release")
        script.open_gate("colour")
        seen = await anna.get(first)
        assert (seen["status"], seen["statusMessage"]) == ("working", "waits for approve: Release «1»?")
        [release] = (await bob.get(second))["inputRequests"]
        [held] = [each for each, it in script.engine.executions.items() if it.start.arguments[0]["version"] == "2"]
        script.engine.executions[held] = replace(script.engine.executions[held], answers={release: {}})
        with anyio.fail_after(TIMEOUT):
            while "result" in (found := await bob.send("tasks/get", {"taskId": second})).body:
                assert list(found.result["inputRequests"]) == [release], "a question of the owner's was shown"
                await anyio.sleep(0.05)
        assert found.code == -32602


class LoggingAdapter(ScriptedAdapter):
    """Its executions have a log and a page."""

    def _run(self, execution: MemoryExecution, ref: Ref) -> Execution:
        return replace(super()._run(execution, ref), has_log=True, url="https://ci.example/1")

    async def log(self, ref: Ref) -> str:
        """The log."""
        return "customer 4711"


async def test_an_approver_without_see_reads_the_question_and_neither_log_nor_the_engines_page(tmp_path: Path) -> None:
    script = Script()
    script.progress("building", 1, 2)
    script.open_gate("release")
    async with served(tmp_path, script, ANNA, BOB, tool=GATED, adapter=LoggingAdapter(script)) as [anna, bob]:
        task_id = (await anna.call("deploy", {"version": "1.4"})).result["taskId"]
        [request] = (asked := await bob.get(task_id))["inputRequests"].values()
        assert request["params"]["message"] == "Release «1.4»?"
        assert not {"mcp-workflows/log", "mcp-workflows/url"} & asked["_meta"].keys()
        uri = (await anna.get(task_id))["_meta"]["mcp-workflows/log"]
        assert (await bob.send("resources/read", {"uri": uri})).code == -32602
        assert (await anna.send("resources/read", {"uri": uri})).result["contents"][0]["text"] == "customer 4711"


async def test_an_approval_midway_that_nobody_gives_is_declined(tmp_path: Path) -> None:
    script = Script()
    script.open_gate("release")
    script.succeed({})
    soon = {"approvers": {"scopes": ["approve"]}, "after": {"in": "500ms", "then": "decline"}}
    tool = gated(approval=soon)
    async with served(tmp_path, script, ANNA, tool=tool) as [anna]:
        task_id = (await anna.call("deploy", {"version": "1.4"})).result["taskId"]
        await until(lambda: bool(script.answers))  # although no client asks for the task
        await anna.until(task_id)
    [answer] = script.answers
    assert answer["send"] == {"ok": False}


async def test_who_may_decide_is_what_the_configuration_says_now(tmp_path: Path) -> None:
    script = Script()
    script.open_gate("release")
    free = gated(approval=None, send={"ok": True})
    gone = Tool.model_validate({**GATED.model_dump(by_alias=True, exclude_unset=True), "questions": {"colour": COLOUR}})
    async with served(tmp_path, script, ANNA, tool=GATED) as [anna]:
        first = (await anna.call("deploy", {"version": "1"})).result["taskId"]
        await anna.get(first)
    async with served(tmp_path, script, ANNA, BOB, tool=gone) as [anna, bob]:  # or renamed
        assert (await anna.get(first))["status"] == "working"
        for each in (anna, bob):
            assert (await each.answer(first, **{"release.1": YES})).code == -32602
    async with served(tmp_path, script, ANNA, tool=free) as [anna]:  # taken away
        await anna.until(first, "input_required")
        assert (await anna.answer(first, **{"release.1": YES})).status == 200
        late = (await anna.call("deploy", {"version": "4"})).result["taskId"]
        await anna.until(late, "input_required")
    async with served(tmp_path, script, ANNA, BOB, tool=GATED) as [anna, bob]:  # added
        assert (await anna.get(late))["status"] == "working"
        assert (await anna.answer(late, **{"release.1": YES})).code == -32602
        [key] = (await bob.get(late))["inputRequests"]
        assert (await bob.answer(late, **{key: YES})).status == 200


@pytest.mark.parametrize("questions", [{"release": RELEASE}, {START_KEY: COLOUR}])
def test_watching_has_no_approval_and_no_question_takes_the_name_of_the_start(questions: Mapping[str, Any]) -> None:
    fields = {"name": "watch", "engine": "memory", "workflow": "deploy", "kind": "watch", "allow_answer": True}
    with pytest.raises(ValidationError, match=r"kind: watch has no approval|this name is reserved"):
        WatchTool.model_validate({**fields, "questions": questions})


async def test_while_another_replica_delivers_a_decision_no_other_one_is_sent(tmp_path: Path) -> None:
    script = Script()
    script.open_gate("release")
    script.succeed({})
    async with (
        served(tmp_path, script, ANNA, BOB, tool=GATED) as [anna, bob],
        open_store(f"sqlite:///{tmp_path}/tasks.db") as other,
    ):
        task_id = (await anna.call("deploy", {"version": "1.4"})).result["taskId"]
        with anyio.fail_after(TIMEOUT):
            while "result" not in (found := await bob.send("tasks/get", {"taskId": task_id})).body:
                await anyio.sleep(0.05)
        [key] = found.result["inputRequests"]
        assert await other.lease(f"decision {task_id}", "another replica", lasting=DECIDING)
        refused = await bob.answer(task_id, **{key: YES})
        assert "Somebody else is deciding now" in refused.error["message"]
        assert script.answers == []
        await other.lease(f"decision {task_id}", "another replica", lasting=timedelta())
        assert (await bob.answer(task_id, **{key: YES})).status == 200
        await anna.until(task_id)
    assert len(script.answers) == 1


@pytest.mark.parametrize(
    ("response", "approved", "reason"),
    [
        ({"action": "accept"}, True, None),
        ({"action": "accept", "content": {"ok": True, "reason": " fine "}}, True, "fine"),
        ({"action": "accept", "content": {"ok": False}}, False, None),
        ({"action": "decline", "content": {"reason": "no\u202e\nby: eve"}}, False, "no by: eve"),
        ({"action": "decline", "content": "odd"}, False, None),
        ({"action": "accept", "content": {"reason": 7}}, True, None),
        ("odd", False, None),
    ],
)
def test_a_decision_is_what_the_person_said(response: Any, approved: bool, reason: str | None) -> None:
    gate = gated(schema={"type": "object", "properties": {"ok": {"type": "boolean"}}}, send="{{answer.ok}}")
    found = decision_of(
        Principal(id="bob"), response, utc_now(), "release", gate.frozen_gates({"args": {"version": 1}})
    )
    assert (found.is_approved, found.reason) == (approved, reason)


def test_a_field_of_the_form_is_not_the_reason_of_the_approval() -> None:
    fields = {"type": "object", "properties": {"reason": {"type": "string"}}}
    for tool in (gated(schema=fields), gated(schema=fields, approval=None)):
        wrong = [text for place, text in tool.problems() if place == "questions.release.schema"]
        assert wrong == (
            ["the field 'reason' is the approver's reason, which `approval` adds: remove it"] * bool(tool.approvals)
        )


def test_only_the_no_of_a_lone_yes_or_no_is_a_refusal() -> None:
    schema = {"type": "object", "properties": {"quick": {"type": "boolean"}, "loud": {"type": "boolean"}}}
    gate = gated(schema=schema, send="{{answer}}").frozen_gates({"args": {"version": 1}})
    said = {"action": "accept", "content": {"quick": False, "loud": True}}
    assert decision_of(Principal(id="bob"), said, utc_now(), "release", gate).is_approved
