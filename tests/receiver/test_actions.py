"""Messages to executions: the actions of a task, and tools that speak to an execution by its id."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.server.lowlevel import Server

from mcp_workflows import Tool, Workflows, attach
from mcp_workflows.access import ANONYMOUS, Principal, Rule
from mcp_workflows.access.audit import Record
from mcp_workflows.access.limit_settings import Limits
from mcp_workflows.access.principal import LOCAL
from mcp_workflows.adapter import Start
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.errors import ConfigError, MappingError, RequestError
from mcp_workflows.tasks.pauses import Pauses
from mcp_workflows.tasks.service import PAGE
from mcp_workflows.tools.compatibility import adapt_tool
from mcp_workflows.units import utc_now
from mcp_workflows.wire.commands import Call, Created
from tests.support.in_memory import MODERN, Line, line
from tests.support.served import Site, peer, site
from tests.support.waiting import TIMEOUT

pytestmark = pytest.mark.anyio

OLD = "2025-11-25"
TASKS: Mapping[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
FOCUS: Mapping[str, Any] = {"type": "object", "properties": {"on": {"type": "string"}}, "required": ["on"]}
ACTIONS: Mapping[str, Any] = {
    "pause": {"event": "pause", "description": "Pause it."},
    "focus": {"event": "focus", "input": FOCUS},
}


def tool(**more: Any) -> Tool:
    """A tool whose workflow runs for ever, and takes messages."""
    written = {"name": "build", "engine": "memory", "workflow": "forever", "actions": ACTIONS, "wait": "10ms"}
    return Tool.model_validate({**written, **more})


@asynccontextmanager
async def server_of(
    folder: Path, *tools: Tool, **settings: Any
) -> AsyncGenerator[tuple[Server[Any], Workflows, MemoryAdapter]]:
    server: Server[Any] = Server("test", version="1")
    engine = MemoryAdapter(MemorySettings(name=str(folder)))
    workflows = attach(
        server, tools=tools or [tool()], engines={"memory": engine}, store=f"sqlite:///{folder}/tasks.db", **settings
    )
    async with workflows:
        yield server, workflows, engine


def sent(engine: MemoryAdapter) -> list[tuple[str, Any]]:
    """The messages that the engine got, each with its content."""
    starts = [each.start for each in engine._engine.executions.values()]  # pyright: ignore[reportPrivateUsage]
    return [(start.options["event"], start.arguments) for start in starts if start.target]


def pause(task_id: str, **more: Any) -> Call:
    """A call that takes an action."""
    arguments = {"taskId": task_id, "action": "pause"}
    return Call(tool="task_action", arguments=arguments, takes_tasks=False, takes_questions=False, **more)


async def unwatched(_: object) -> None:
    """Report progress to nobody."""


async def started(client: Line) -> str:
    return str((await client.tool("build"))["structuredContent"]["taskId"])


@pytest.mark.parametrize("version", [MODERN, OLD])
async def test_a_status_lists_the_actions_and_task_action_takes_one(tmp_path: Path, version: str) -> None:
    async with server_of(tmp_path) as (server, _, engine), line(server, version) as client:
        names = [each["name"] for each in (await client.send("tools/list"))["result"]["tools"]]
        assert names[0] == "build"
        assert "task_action" in names
        handed = await client.tool("build")
        task_id = handed["structuredContent"]["taskId"]
        actions = handed["structuredContent"]["actions"]
        assert actions == {"pause": {"description": "Pause it."}, "focus": {"schema": FOCUS}}
        text = handed["content"][0]["text"]
        assert "- pause: Pause it.\n- focus - schema of content: " in text
        taken = await client.tool("task_action", {"taskId": task_id, "action": "focus", "content": {"on": "tests"}})
        assert (taken["isError"], taken["structuredContent"]) == (
            False,
            {"event": "focus", "content": {"on": "tests"}},
        )
        assert not (await client.tool("task_action", {"taskId": task_id, "action": "pause"}))["isError"]
        assert sent(engine) == [("focus", [{"on": "tests"}]), ("pause", [])]
        listed = (await client.tool("my_tasks"))["structuredContent"]["tasks"]
        assert [each["tool"] for each in listed] == ["build"]


async def test_clients_with_tasks_see_the_tool_too_and_others_without_actions_do_not(tmp_path: Path) -> None:
    async with server_of(tmp_path) as (server, _, _), line(server, MODERN, TASKS) as client:
        names = [each["name"] for each in (await client.send("tools/list"))["result"]["tools"]]
        assert names == ["build", "task_action"]
    async with server_of(tmp_path, tool(actions={})) as (server, _, _), line(server, MODERN) as client:
        names = [each["name"] for each in (await client.send("tools/list"))["result"]["tools"]]
        assert "task_action" not in names


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"action": "pauze"}, "build has no action «pauze»; did you mean 'pause'? (actions: focus, pause)"),
        ({"action": "focus"}, "'on' is a required property"),
        ({"action": "focus", "content": {"on": 1}}, "on: 1 is not of type"),
        ({"action": "pause", "content": {"now": True}}, "now"),
        ({}, "'action' is a required property"),
    ],
)
async def test_a_wrong_action_sends_nothing_and_says_what_is_wrong(
    tmp_path: Path, arguments: Mapping[str, Any], said: str
) -> None:
    async with server_of(tmp_path) as (server, _, engine), line(server, MODERN) as client:
        reply = (await client.call("task_action", {"taskId": await started(client), **arguments}))["result"]
        assert reply["isError"]
        assert said in reply["content"][0]["text"]
        assert sent(engine) == []


async def test_a_task_that_has_ended_takes_no_action(tmp_path: Path) -> None:
    async with server_of(tmp_path) as (server, _, engine), line(server, MODERN) as client:
        task_id = await started(client)
        await client.tool("task_cancel", {"taskId": task_id})
        assert "actions" not in (await client.tool("task_status", {"taskId": task_id}))["structuredContent"]
        reply = (await client.call("task_action", {"taskId": task_id, "action": "pause"}))["result"]
        assert (reply["isError"], "has ended; nothing was sent" in reply["content"][0]["text"]) == (True, True)
        assert sent(engine) == []


async def test_no_client_calls_an_action_as_a_tool(tmp_path: Path) -> None:
    async with server_of(tmp_path) as (server, _, engine), line(server, MODERN) as client:
        assert "error" in await client.call("build/pause")
        assert sent(engine) == []


async def test_one_idempotency_key_is_one_message_for_one_task(tmp_path: Path) -> None:
    async with server_of(tmp_path) as (server, workflows, engine), line(server, MODERN) as client:
        first, second = await started(client), await started(client)
        service = workflows.service

        async def report(_: object) -> None:
            """Nobody watches."""

        def call(task_id: str) -> Call:
            arguments = {"taskId": task_id, "action": "focus", "content": {"on": "docs"}}
            return Call(
                tool="task_action",
                arguments=arguments,
                takes_tasks=False,
                takes_questions=False,
                idempotency_key="k" * 40,
            )

        await service.act(call(first), LOCAL, report)
        await service.act(call(first), LOCAL, report)
        assert sent(engine) == [("focus", [{"on": "docs"}])]
        with pytest.raises(Exception, match="used for a call with other arguments"):
            await service.act(call(second), LOCAL, report)


async def test_a_hosts_number_of_a_call_is_for_one_task(tmp_path: Path) -> None:
    async with server_of(tmp_path) as (server, workflows, engine), line(server, MODERN) as client:
        first, second = await started(client), await started(client)
        for task_id in (first, second, second):
            await workflows.service.act(pause(task_id, host_key=("host/turn", "7")), LOCAL, unwatched)
        assert sent(engine) == [("pause", []), ("pause", [])]


async def test_a_message_is_audited_though_its_caller_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records, taken, go_on, start = list[Record](), anyio.Event(), anyio.Event(), MemoryAdapter.start

    async def slow(self: MemoryAdapter, given: Start) -> str:
        handle = await start(self, given)
        taken.set()
        await go_on.wait()
        return handle

    async with server_of(tmp_path, audit=records.append) as (server, workflows, engine), line(server, MODERN) as client:
        task_id = await started(client)
        monkeypatch.setattr(MemoryAdapter, "start", slow)
        with anyio.fail_after(TIMEOUT):
            async with anyio.create_task_group() as group:
                group.start_soon(workflows.service.act, pause(task_id), LOCAL, unwatched)
                await taken.wait()
                group.cancel_scope.cancel()
                go_on.set()
        assert sent(engine) == [("pause", [])]
    assert [(each.outcome, each.reason) for each in records if each.event == "act"] == [("left", "pause")]


async def test_messages_that_have_ended_hide_no_task(tmp_path: Path) -> None:
    async with server_of(tmp_path) as (server, _, _), line(server, MODERN) as client:
        task_id = await started(client)
        for number in range(PAGE + 1):
            await client.tool("task_action", {"taskId": task_id, "action": "focus", "content": {"on": str(number)}})
        listed = await client.tool("my_tasks")
        assert [each["taskId"] for each in listed["structuredContent"]["tasks"]] == [task_id]


async def test_a_message_cannot_be_taken_back(tmp_path: Path) -> None:
    poke = mail(allow={"call": {}, "see": {}, "cancel": {}, "act": {"any_owner": True}})
    async with server_of(tmp_path, tool(), poke) as (server, workflows, engine), line(server, MODERN) as client:
        await started(client)
        [handle] = engine._engine.executions  # pyright: ignore[reportPrivateUsage]
        engine.faults.lost_start_replies = 1_000
        call = Call(
            tool="poke", arguments={"user": handle.removeprefix("memory-")}, takes_tasks=True, takes_questions=False
        )
        created = await workflows.service.call(call, LOCAL, unwatched)
        assert isinstance(created, Created)
        with pytest.raises(RequestError, match="may have sent its message already"):
            await workflows.service.cancel(created.task.task_id, LOCAL)


async def test_a_task_that_was_cancelled_for_ever_takes_no_action(tmp_path: Path) -> None:
    capabilities: Mapping[str, Any] = {"tasks": {}}
    stubborn = tool(workflow="stubborn")
    async with server_of(tmp_path, stubborn) as (server, _, engine), line(server, OLD, capabilities) as client:
        task_id = (await client.call("build", {}, task={"ttl": 60_000}))["result"]["task"]["taskId"]
        assert (await client.send("tasks/cancel", {"taskId": task_id}))["result"]["status"] == "cancelled"
        reply = (await client.call("task_action", {"taskId": task_id, "action": "pause"}))["result"]
        assert "has ended; nothing was sent" in reply["content"][0]["text"]
        assert sent(engine) == []


async def test_a_lost_reply_sends_a_message_once(tmp_path: Path) -> None:
    async with server_of(tmp_path) as (server, _, engine), line(server, MODERN) as client:
        task_id = await started(client)
        engine.faults.lost_start_replies = 1
        taken = await client.tool("task_action", {"taskId": task_id, "action": "pause"})
        assert not taken["isError"]
        assert taken["structuredContent"] == {"event": "pause", "content": {}}
        assert sent(engine) == [("pause", [])]


async def test_a_caller_with_as_many_tasks_as_it_may_have_can_still_act_on_them(tmp_path: Path) -> None:
    limits = Limits(tasks_per_principal=1)
    async with server_of(tmp_path, limits=limits) as (server, _, engine), line(server, MODERN) as client:
        task_id = await started(client)
        assert (await client.call("build"))["result"]["isError"]
        await client.tool("task_action", {"taskId": task_id, "action": "pause"})
        assert sent(engine) == [("pause", [])]


async def test_a_pause_of_the_engine_stops_starts_and_no_messages(tmp_path: Path) -> None:
    async with server_of(tmp_path) as (server, workflows, engine), line(server, MODERN) as client:
        task_id = await started(client)
        await Pauses(workflows.store, utc_now).begin("engine memory", "upgrade")
        with anyio.fail_after(TIMEOUT):
            while not (await client.call("build"))["result"]["isError"]:  # it counts within a second
                await anyio.sleep(0.05)
        await client.tool("task_action", {"taskId": task_id, "action": "pause"})
        assert sent(engine) == [("pause", [])]


# --- who may


RULES: Mapping[str, Any] = {"call": {}, "see": [{}, {"scopes": ["ops"], "any_owner": True}], "cancel": {}}


@asynccontextmanager
async def acting(folder: Path, *tools: Tool) -> AsyncGenerator[tuple[Site, MemoryAdapter, list[Record]]]:
    engine, records = MemoryAdapter(MemorySettings(name=str(folder))), list[Record]()
    store = f"sqlite:///{folder}/tasks.db"
    async with site(
        store=store, tools=tools, adapters={"memory": engine}, authenticated=True, audit=records.append
    ) as found:
        yield found, engine, records


@pytest.mark.parametrize(
    ("allow", "may"),
    [
        (None, {"anna": True, "bob": False, "bob+ops": False}),
        (RULES, {"anna": False, "bob": False, "bob+ops": False}),
        ({**RULES, "act": {}}, {"anna": True, "bob": False, "bob+ops": False}),
        (
            {**RULES, "act": {"scopes": ["ops"], "any_owner": True}},
            {"anna": False, "bob": False, "bob+ops": True},
        ),
    ],
)
async def test_the_rules_of_a_tool_say_who_may_act(
    tmp_path: Path, allow: Mapping[str, Any] | None, may: Mapping[str, bool]
) -> None:
    async with acting(tmp_path, tool(allow=allow)) as (served, engine, records):
        async with peer(served.url, token="anna") as anna:
            task_id = (await anna.call("build")).result["taskId"]
        for who, is_allowed in may.items():
            before = len(sent(engine))
            async with peer(served.url, token=who) as one:
                reply = await one.call("task_action", {"taskId": task_id, "action": "pause"})
                shown = (await one.call("task_status", {"taskId": task_id})).result
            assert reply.result["isError"] is not is_allowed, who
            assert len(sent(engine)) - before == is_allowed
            assert ("actions" in shown.get("structuredContent", {})) is is_allowed
        acts = [record for record in records if record.event == "act"]
        assert [record.reason for record in acts] == ["pause"] * sum(may.values())


def mail(**more: Any) -> Tool:
    """A tool that sends a message to the execution whose handle the caller gives."""
    schema = {"type": "object", "properties": {"user": {"type": "string"}}, "required": ["user"]}
    options = {"event": "poke", "execution": "memory-{{user}}"}
    return Tool.model_validate({"name": "poke", "engine": "memory", "options": options, "input": schema, **more})


TENANT = Principal(id="tenant", issuer="https://one", client="tenant")
ANNA = Principal(id="anna", issuer="https://one", client="host", subject="anna")


@pytest.mark.parametrize(
    ("address", "who", "found"),
    [
        ("cart-{{principal.subject}}", ANNA, "cart-anna"),
        ("cart-{{principal.subject}}", LOCAL, "cart-"),
        ("cart-{{principal.subject}}", TENANT, None),
        ("{{principal.subject}}", TENANT, None),
        ("cart-{{principal.claims.team}}", ANNA, None),
        ("cart-{{principal.subject}}", ANONYMOUS, None),
        ("cart-{{principal.id}}", ANONYMOUS, None),
        ("cart-{{user.name}}", ANNA, None),
    ],
)
def test_callers_never_share_the_execution_that_an_id_of_theirs_would_name(
    address: str, who: Principal, found: str | None
) -> None:
    made = adapt_tool(mail(options={"event": "poke", "execution": address}), MemoryAdapter)
    scope: Mapping[str, Any] = {"args": {"user": {}}, **who.scope, "task": {"id": "t"}}
    if found is not None:
        assert made.frozen_options(scope)["execution"] == found
        return
    with pytest.raises(MappingError, match=r"must be given here|you are anonymous"):
        made.frozen_options(scope)


@pytest.mark.parametrize(
    ("claim", "argument", "fits"),
    [("a", "a", True), (1, 1, True), (1, True, False), (1, 1.0, False), ("", "", False), ([1], [1], False)],
)
def test_a_rule_binds_texts_and_whole_numbers(claim: Any, argument: Any, fits: bool) -> None:
    rule = Rule(arguments={"user": "principal.claims.id"})
    caller = Principal(id="anna", subject="anna", claims={"id": claim})
    assert rule.fits_arguments(caller, {"user": argument}) is fits


@pytest.mark.parametrize(
    "allow",
    [
        None,
        {"call": {}, "see": {}},
        {"call": {}, "see": {}, "act": {}},
        {"call": {}, "see": {}, "act": {"scopes": ["ops"]}},
        {"call": {}, "see": {}, "act": {"arguments": {"other": "principal.subject"}}},
        {
            "call": {},
            "see": {},
            "act": [{"arguments": {"user": "principal.subject"}}, {"arguments": {"other": "principal.client"}}],
        },
    ],
)
def test_an_id_that_a_model_writes_needs_a_rule_that_binds_it(allow: Mapping[str, Any] | None) -> None:
    engines = {"memory": MemoryAdapter(MemorySettings())}
    with pytest.raises(ConfigError, match=r"a model sets user, .*act: \{arguments: \{user: principal\.subject"):
        attach(Server("test", version="1"), tools=[mail(allow=allow)], engines=engines, store="sqlite:///:memory:")


def test_an_id_of_the_caller_alone_needs_no_rule() -> None:
    engines = {"memory": MemoryAdapter(MemorySettings())}
    bound = mail(options={"event": "poke", "execution": "{{principal.subject}}"})
    attach(Server("test", version="1"), tools=[bound], engines=engines, store="sqlite:///:memory:")
    for text in ("{{join('', [user])}}", "{{args}}", "{{principal.subject}}-{{user}}"):
        odd = mail(options={"event": "poke", "execution": text})
        with pytest.raises(ConfigError, match="a model sets"):
            attach(Server("test", version="1"), tools=[odd], engines=engines, store="sqlite:///:memory:")


async def test_a_tool_that_sends_a_message_says_so(tmp_path: Path) -> None:
    bound = mail(options={"event": "poke", "execution": "{{principal.id}}"})
    async with server_of(tmp_path, bound) as (server, _, _), line(server, MODERN) as client:
        [shown, *_] = (await client.send("tools/list"))["result"]["tools"]
        assert shown["description"] == "Sends a message to an execution: event poke."
        refused = (await client.call("poke", {"user": "anna"}))["result"]
        assert refused["content"][0]["text"] == "Engine memory refused event poke: there is no such execution"


async def test_a_caller_speaks_to_its_own_execution_and_support_to_any(tmp_path: Path) -> None:
    act = [{"arguments": {"user": "principal.subject"}}, {"scopes": ["support"], "any_owner": True}]
    async with acting(tmp_path, mail(allow={"call": {}, "see": {}, "act": act})) as (served, engine, records):
        for who, user, is_allowed in (
            ("anna", "anna", True),
            ("anna", "bob", False),
            ("bob+support", "anna", True),
            ("eve", "anna", False),
        ):
            records.clear()
            async with peer(served.url, token=who) as one:
                reply = (await one.call("poke", {"user": user}, capabilities={})).result
            text = reply["content"][0]["text"]
            assert ("there is no such execution" in text) is is_allowed, text  # nobody has started any
            assert ("Not allowed: poke with these arguments" in text) is not is_allowed
            assert any(record.event == "deny" for record in records) is not is_allowed
        assert sent(engine) == []
