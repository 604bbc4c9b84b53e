"""What holds of each cloud in front of its local engine: an adapter describes a `Cloud`, and subclasses these suites.

class TestQuestions(QuestionSuite):
    '''Questions of state machines.'''
"""

from __future__ import annotations

import json
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Final

import anyio
import httpx2
import pytest
from typer.testing import CliRunner

from mcp_workflows.adapter import Adapter, DescribesMany, Execution, Gate, InputRequest, Ref, Status
from mcp_workflows.kit.tooling import Explains
from mcp_workflows.sidecar.cli.app import app
from mcp_workflows.sidecar.config.load import load_config
from mcp_workflows.testing import AdapterContract, Role, Subject
from mcp_workflows.testing.laws import cancelled_afterwards, new_start, ref_of, until_ended
from tests.support.child_processes import free_port
from tests.support.commands import COMMAND, run
from tests.support.configured import (
    KEY,
    YES,
    asked,
    called,
    client_of,
    killed_while_creating,
    one_task_that_completes,
    operating,
    written,
)
from tests.support.engine_process import EngineProcess
from tests.support.served import Peer, peer, told
from tests.support.sidecars import dying_sidecar, sidecar

PATIENCE: Final = 120.0  # seconds
DOCS: Final = Path(__file__).parents[2] / "docs" / "engines"
NO: Final = {"action": "decline"}
OK_FORM: Final = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
APPROVE: Final = InputRequest(method="elicitation/create", params={"mode": "form", "message": "Approve?"})


class Cloud(ABC):
    """A local engine, workflows on it by the part they play, and what became of their executions.

    The parts: `echo` returns its input, `declines` fails ("the card was declined"), `forever` sleeps, `nap` sleeps for
    a second, `asks` asks "Ship it?" and returns the answer, `asks_two` asks "Really?" beside it, and `gated` waits at
    a step for an approval that it returns.
    """

    name: ClassVar[str]  # of the engine in workflows.yaml
    gate: ClassVar[Mapping[str, Any]]  # `when`, `send` and `decline` of `gated`
    declined: ClassVar[Any]  # what `gated` returns when it is declined
    secret: ClassVar[str]  # a pattern of what nobody may read: a task token, the URL of a callback

    def __init__(self, process: EngineProcess) -> None:
        self.process = process
        self.port = free_port()  # where the sidecar must serve that its workflows call

    @abstractmethod
    def settings(self) -> Mapping[str, Any]:
        """The engine in workflows.yaml."""

    @abstractmethod
    def open(self, **more: Any) -> AbstractAsyncContextManager[Adapter]:
        """An adapter in front of the engine."""

    @abstractmethod
    def deploy(self, part: str, *, mark: str | None = None) -> str:
        """Deploy a workflow, which may be marked as a tool, and return its name."""

    @abstractmethod
    def start(self, workflow: str) -> str:
        """Start an execution as somebody else does it."""

    @abstractmethod
    def workflows(self) -> Sequence[str]:
        """All that is deployed."""

    @abstractmethod
    def executions(self, workflow: str) -> Sequence[str]:
        """All executions of a workflow."""

    @abstractmethod
    def state(self, execution: str) -> str:
        """The state of an execution, in the engine's word, once it has ended."""

    @abstractmethod
    async def answer_elsewhere(self, execution: str, output: str) -> None:
        """Answer at the gate behind our back."""

    @abstractmethod
    def secrets(self, execution: str) -> Sequence[str]:
        """The task tokens of an execution."""

    @abstractmethod
    def discover(self, mark: str) -> Mapping[str, Any]:
        """The setting `discover` that offers what has this mark."""

    @abstractmethod
    def unmark(self, workflow: str, mark: str) -> None:
        """Take the mark off."""

    def returned(self, response: Mapping[str, Any]) -> Any:
        """What `asks` returns after this response."""
        return {"content": {}, **response}

    def configured(
        self,
        folder: Path,
        tools: Mapping[str, Mapping[str, Any]],
        server: Mapping[str, Any] | None = None,
        **engine: Any,
    ) -> Path:
        """The workflows.yaml of these tools; `engine` adds to the settings."""
        return written(folder, self.name, {**self.settings(), **engine}, tools, server)

    @asynccontextmanager
    async def serve(self, folder: Path, part: str = "asks", **tool: Any) -> AsyncGenerator[tuple[Peer, str]]:
        """A client of a sidecar whose tool `it` is this part, and its workflow."""
        workflow = self.deploy(part)
        async with client_of(self.configured(folder, {"it": {"workflow": workflow, **tool}}), port=self.port) as client:
            yield client, workflow

    def gates(self, when: Any = None) -> Mapping[str, Gate]:
        """The gate of `gated`, as an adapter gets it."""
        sends = {"send": self.gate["send"], "decline": self.gate["decline"]}
        return {"approval": Gate(when=when or self.gate["when"], request=APPROVE, **sends)}


async def acknowledged(client: Peer, task_id: str, **responses: Any) -> None:
    """Answer, and be told that it is fine."""
    assert (await client.answer(task_id, **responses)).result["resultType"] == "complete"


async def all_asked(client: Peer, task_id: str, count: int = 2) -> Mapping[str, str]:
    """Keys by message, once so many questions are open."""
    with anyio.fail_after(PATIENCE):
        while len(found := (await client.get(task_id)).get("inputRequests", {})) < count:
            await anyio.sleep(0.02)
    return {question["params"]["message"]: key for key, question in found.items()}


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """True if two reads of a task differ in nothing but the interval, which depends on the load."""
    return {**one, "pollIntervalMs": 0} == {**other, "pollIntervalMs": 0}


def stored(folder: Path) -> bytes:
    """All of the store's files."""
    return b"".join(path.read_bytes() for path in folder.glob("tasks.db*"))


def invoked(*words: str) -> str:
    """What a command prints; it succeeds."""
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, done.output
    return done.stdout


class Suite:
    """Tests of what has a fixture `cloud`."""

    pytestmark: ClassVar[Sequence[pytest.MarkDecorator]] = [pytest.mark.anyio]


class QuestionSuite(Suite):
    """Questions and gates as clients see them: from `tools/call` to what the workflow gets."""

    async def test_what_a_person_does_is_what_the_workflow_gets(self, cloud: Cloud, tmp_path: Path) -> None:
        words = {"action": "accept", "content": {"answer": 'j\u00e4 \u2603 "quoted" ${args} \u2028 \U0001f600'}}
        async with cloud.serve(tmp_path) as (client, _):
            for response in (YES, words, NO, {"action": "cancel"}):
                task_id = await called(client)
                key, question = await asked(client, task_id)
                assert question["params"]["message"] == "Ship it?"
                assert question["params"]["requestedSchema"]["required"] == ["answer"]
                await acknowledged(client, task_id, **{key: response})
                done = (await client.until(task_id))["result"]["structuredContent"]
                assert done == cloud.returned(response)

    async def test_two_questions_are_answered_one_by_one_declined_and_answered_again_in_vain(
        self, cloud: Cloud, tmp_path: Path
    ) -> None:
        async with cloud.serve(tmp_path, "asks_two") as (client, _):
            task_id = await called(client)
            keys = await all_asked(client, task_id)
            first, second = keys["Ship it?"], keys["Really?"]
            wrong = await client.answer(task_id, **{first: {"action": "accept", "content": {"answer": 1}}})
            assert wrong.error["data"]["key"] == first
            await acknowledged(client, task_id, **{first: YES})
            assert set((await client.get(task_id))["inputRequests"]) == {second}
            await acknowledged(client, task_id, **{first: NO, "999": YES})
            assert (await client.get(task_id))["status"] == "input_required"
            await acknowledged(client, task_id, **{second: NO})
            assert (await client.until(task_id))["status"] == "completed"

    async def test_an_answer_after_a_cancellation_changes_nothing(self, cloud: Cloud, tmp_path: Path) -> None:
        async with cloud.serve(tmp_path) as (client, workflow):
            task_id = await called(client)
            key, _ = await asked(client, task_id)
            assert (await client.send("tasks/cancel", {"taskId": task_id})).result["resultType"] == "complete"
            await acknowledged(client, task_id, **{key: YES})
            ended = await client.until(task_id)
            await acknowledged(client, task_id, **{key: YES})
            assert same(await client.get(task_id), ended)
        assert ended["status"] == "cancelled"
        [execution] = cloud.executions(workflow)
        assert cloud.state(execution) in {"ABORTED", "CANCELLED"}

    async def test_a_gate_sends_what_the_configuration_says_also_from_the_command_line(
        self, cloud: Cloud, tmp_path: Path
    ) -> None:
        gate = {**cloud.gate, "message": "Ship {{args.order_id}}?", "schema": OK_FORM}
        order = {"type": "object", "properties": {"order_id": {"type": "string"}}}
        async with cloud.serve(tmp_path, "gated", input=order, questions={"approval": gate}) as (client, _):
            for response, result in (("operator", {"approved": True}), (NO, cloud.declined)):
                task_id = await called(client)
                key, question = await asked(client, task_id)
                assert question["params"]["message"] == "Ship «A1»?"
                if response == "operator":
                    await operating(tmp_path, "answer", task_id, "approval.ok=true")
                else:
                    await acknowledged(client, task_id, **{key: response})
                done = (await client.until(task_id))["result"]
                assert done["isError"] is False
                assert result in (done.get("structuredContent"), done["content"][0]["text"])

    async def test_an_execution_that_somebody_else_started_is_watched_by_each_name_of_its_workflow(
        self, cloud: Cloud, tmp_path: Path
    ) -> None:
        workflow, watching = cloud.deploy("asks_two"), {"kind": "watch", "allow_answer": True}
        tools = {
            "it": {"workflow": workflow},
            "by_name": {"workflow": workflow, **watching},
            "by_id": {"workflow": re.split("[/:]", workflow)[-1], **watching},
            "looks": {"workflow": workflow, "kind": "watch"},
            "other": {"workflow": "other", **watching},
        }
        config = cloud.configured(tmp_path, tools, {"single_user": True})
        async with client_of(config, port=cloud.port) as client:
            wanted = {"execution_id": cloud.start(workflow)}
            watched = [str((await client.call(tool, wanted)).result["taskId"]) for tool in ("by_name", "by_id")]
            keys = await all_asked(client, watched[0])
            assert await all_asked(client, watched[1]) == keys
            refused = (await client.call("other", wanted)).result
            assert (refused["isError"], "shows no execution" in refused["content"][0]["text"]) == (True, True)
            looks = str((await client.call("looks", wanted)).result["taskId"])
            assert "nothing to cancel" in (await client.send("tasks/cancel", {"taskId": looks})).error["message"]
            words = ("tasks", "track", "it", wanted["execution_id"], "--owner", "local", "-c", str(config))
            adopted = (await anyio.to_thread.run_sync(partial(invoked, *words))).strip()
            assert await all_asked(client, adopted) == keys
            await acknowledged(client, watched[0], **{keys["Ship it?"]: YES})
            await acknowledged(client, adopted, **{keys["Really?"]: YES})
            for task_id in (*watched, adopted, looks):
                assert (await client.until(task_id))["status"] == "completed"

    async def test_what_an_answer_needs_is_in_no_log_no_store_and_no_message(
        self, cloud: Cloud, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        gate = {**cloud.gate, "message": "Ship it?", "schema": OK_FORM}
        asks, gated = cloud.deploy("asks"), cloud.deploy("gated")
        tools = {"asks": {"workflow": asks}, "gated": {"workflow": gated, "questions": {"approval": gate}}}
        config, said = cloud.configured(tmp_path, tools), list[str]()
        with caplog.at_level(logging.DEBUG):
            async with client_of(config, port=cloud.port) as client:
                for tool, response in (("asks", YES), ("gated", {"action": "accept", "content": {"ok": True}})):
                    task_id = (await client.call(tool)).result["taskId"]
                    key, question = await asked(client, task_id)
                    said += [str(question), str(await client.get(task_id))]
                    why = ("tasks", "why", task_id, "-c", str(config))
                    said.append(await anyio.to_thread.run_sync(partial(invoked, *why)))
                    said.append(str((await client.answer(task_id, **{key: response})).body))
                    said.append(str(await client.until(task_id)))
        kept, shown = stored(tmp_path), "".join([*said, caplog.text])
        assert not re.search(cloud.secret, shown)
        for workflow in (asks, gated):
            for secret in cloud.secrets(cloud.executions(workflow)[0]):
                assert secret not in shown
                assert secret.encode() not in kept


@dataclass(frozen=True, slots=True)
class Watched:
    """One execution behind gates, as a task sees it."""

    adapter: Adapter
    ref: Ref

    async def until(self, wanted: Callable[[Execution], object]) -> Execution:
        """The first look that is as wanted."""
        with anyio.fail_after(PATIENCE):
            while not wanted(seen := await self.adapter.describe(self.ref)):
                await anyio.sleep(0.01)
        return seen

    async def asked(self, gate: str = "approval") -> str:
        """The key of a gate's question, once it is open."""
        found = await self.until(lambda seen: gate in {each.gate for each in seen.requests.values()})
        return next(key for key, each in found.requests.items() if each.gate == gate)

    async def until_explained(self, said: str) -> None:
        """Until it is said of the gate why it is open or closed."""
        tooling, found = self.adapter.tooling, ""
        assert isinstance(tooling, Explains)
        try:
            with anyio.fail_after(PATIENCE):
                while not re.fullmatch(said, found):
                    gate = (await tooling.explain(self.ref)).gates["approval"]
                    found = f"{gate.state}: {gate.why}"
        except TimeoutError:
            raise AssertionError(found) from None


async def begin(adapter: Adapter, workflow: str, gates: Mapping[str, Gate]) -> Watched:
    """Start an execution behind gates."""
    handle = await adapter.start(new_start(Role(workflow=workflow, arguments=[{}])))
    return Watched(adapter, Ref(workflow=workflow, handle=handle, gates=gates))


class GateSuite(Suite):
    """Gates through the adapter: workflows that were not written for us."""

    @pytest.mark.parametrize("accepts", [True, False])
    async def test_an_answer_at_a_gate_goes_to_its_step_and_is_in_no_log(
        self, cloud: Cloud, caplog: pytest.LogCaptureFixture, accepts: bool
    ) -> None:
        send = cloud.gate["send"] if accepts else cloud.gate["decline"]
        approved = json.loads(json.dumps(send).replace('"{{answer.ok}}"', "true"))
        response = {"action": "accept" if accepts else "decline", "send": approved}
        workflow = cloud.deploy("gated")
        async with cloud.open() as adapter:
            with caplog.at_level(logging.DEBUG):
                it = await begin(adapter, workflow, cloud.gates())
                key = await it.asked()
                seen = await adapter.describe(it.ref)
                assert (seen.status, seen.requests[key].params) == (Status.INPUT_REQUIRED, APPROVE.params)
                await it.until_explained(rf"open: it asks: Approve\? \({key}\)")
                await adapter.answer(it.ref, {key: response})
                done = await it.until(lambda seen: seen.terminal)
            assert (done.status, done.output) == (
                Status.SUCCEEDED,
                {"approved": True} if accepts else cloud.declined,
            )
            await adapter.answer(it.ref, {key: response})  # too late, and ignored
        assert not re.search(cloud.secret, repr(seen) + caplog.text)
        assert not [secret for secret in cloud.secrets(it.ref.handle) if secret in repr(seen) + caplog.text]

    async def test_an_answer_given_elsewhere_closes_the_gate(self, cloud: Cloud) -> None:
        async with cloud.open() as adapter:
            it = await begin(adapter, cloud.deploy("gated"), cloud.gates())
            key = await it.asked()
            await cloud.answer_elsewhere(it.ref.handle, "by mail")
            await adapter.answer(it.ref, {key: {"action": "decline", "send": cloud.gate["decline"]}})
            done = await it.until(lambda seen: seen.terminal)
        assert (done.status, done.output) == (Status.SUCCEEDED, "by mail")


class ReplicaSuite(Suite):
    """kill -9 and two replicas: processes of the sidecar in front of the local engine."""

    @pytest.mark.parametrize(
        "step", ["start", *(pytest.param(step, marks=pytest.mark.slow) for step in ("row", "bind", "reply"))]
    )
    async def test_a_sidecar_killed_while_it_creates_loses_nothing_and_starts_nothing_twice(
        self, cloud: Cloud, tmp_path: Path, step: str
    ) -> None:
        workflow = cloud.deploy("nap")
        config = cloud.configured(tmp_path, {"it": {"workflow": workflow}}, **self.impatient)
        await killed_while_creating(config, step, meta=KEY)
        await one_task_that_completes(config)
        assert len(cloud.executions(workflow)) == 1

    impatient: ClassVar[Mapping[str, Any]] = {}  # settings that make starts certain soon

    async def test_an_answer_that_arrived_before_the_sidecar_died_is_taken_once(
        self, cloud: Cloud, tmp_path: Path
    ) -> None:
        config = cloud.configured(tmp_path, {"it": {"workflow": cloud.deploy("asks")}})
        with dying_sidecar(config, "answer", port=cloud.port) as dying:
            async with peer(dying.url) as client:
                task_id = await called(client)
                key, _ = await asked(client, task_id)
                with pytest.raises(httpx2.TransportError):
                    await client.answer(task_id, **{key: YES})
            assert dying.process.wait(60) == -9
        with sidecar(config, port=cloud.port) as fresh:
            async with peer(fresh.url) as client:
                await acknowledged(client, task_id, **{key: YES})
                done = await client.until(task_id)
        assert (done["status"], done["result"]["structuredContent"]) == ("completed", cloud.returned(YES))

    async def test_two_replicas_start_once_and_a_question_outlives_the_one_that_is_killed(
        self, cloud: Cloud, tmp_path: Path
    ) -> None:
        workflow = cloud.deploy("asks")
        config = cloud.configured(tmp_path, {"it": {"workflow": workflow}})
        with sidecar(config, port=cloud.port) as one, sidecar(config) as two:
            async with peer(one.url) as first, peer(two.url) as second:
                ids: list[str] = []

                async def call(client: Peer) -> None:
                    ids.append(await called(client, meta=KEY))

                async with anyio.create_task_group() as group:
                    for number in range(20):
                        group.start_soon(call, (first, second)[number % 2])
                assert (len(ids), len(set(ids))) == (20, 1)
                key, question = await asked(second, ids[0])  # it may have been sent to the other one
                one.process.kill()
                assert await asked(second, ids[0]) == (key, question)
                await acknowledged(second, ids[0], **{key: YES})
                assert (await second.until(ids[0]))["status"] == "completed"
        assert len(cloud.executions(workflow)) == 1

    async def test_an_engine_that_freezes_and_then_is_gone_ends_no_task(self, own_cloud: Cloud, tmp_path: Path) -> None:
        cloud, engine = own_cloud, own_cloud.process
        config = cloud.configured(tmp_path, {"it": {"workflow": cloud.deploy("asks")}}, timeout_seconds=1)
        async with client_of(config, port=cloud.port) as client:
            first, second = [await called(client) for _ in range(2)]
            (one, _), (other, _) = [await asked(client, task_id) for task_id in (first, second)]
            engine.freeze()
            seen = await told(client, first, "no answer", within=30)
            assert (seen["status"], list(seen["inputRequests"])) == ("input_required", [one])
            assert "did not accept the answer" in (await client.answer(first, **{one: YES})).error["message"]
            engine.thaw()
            with anyio.fail_after(PATIENCE):
                while "error" in (await client.answer(first, **{one: YES})).body:
                    await anyio.sleep(0.1)
            done = await client.until(first)
            assert done["status"] == "completed"
            engine.kill()
            seen = await told(client, second, "cannot connect", within=30)
            assert (seen["status"], list(seen["inputRequests"])) == ("input_required", [other])
            assert same(await client.get(first), done)
            refused = (await client.call("it")).result
            assert refused["isError"]
            assert "nothing was started" in refused["content"][0]["text"]


class OperatorSuite(Suite):
    """What is marked is offered; commands that draft, and that try the engine."""

    async def test_a_marked_workflow_is_a_tool_until_its_mark_is_taken_off(self, cloud: Cloud, tmp_path: Path) -> None:
        mark = f"m{cloud.port}"
        marked, _ = cloud.deploy("echo", mark=mark), cloud.deploy("echo")
        config = cloud.configured(tmp_path, {}, discover={**cloud.discover(mark), "every": "1s"})
        async with client_of(config) as client:
            name = re.split("[/:]", marked)[-1]
            await until_listed(client, name)
            task_id = (await client.call(name, {"text": "hi"})).result["taskId"]
            assert (await client.until(task_id))["result"]["structuredContent"] == {"text": "hi"}
            cloud.unmark(marked, mark)
            await until_listed(client)
            assert (await client.get(task_id))["status"] == "completed"

    def test_import_drafts_tools_that_load_and_passes_over_those_that_are_there(
        self, cloud: Cloud, tmp_path: Path
    ) -> None:
        there, new = (re.split("[/:]", name)[-1] for name in (cloud.deploy("echo"), cloud.deploy("echo")))
        path = cloud.configured(tmp_path, {"mine": {"workflow": there}})
        printed = invoked("init", "--add", cloud.name, "-c", str(path))
        assert f"# {there} is there already: mine" in printed
        drafted = re.sub(r"(?m)^  # ", "  ", printed.split("tools:\n")[1])
        path.write_text(f"engines: {json.dumps({cloud.name: cloud.settings()})}\ntools:\n{drafted}")
        found = [tool.workflow for tool in load_config(path, {}).tools]
        assert new in found
        assert there not in found

    def test_a_first_configuration_of_what_is_deployed_loads(self, cloud: Cloud, tmp_path: Path) -> None:
        name, path = re.split("[/:]", cloud.deploy("echo"))[-1], tmp_path / "workflows.yaml"
        settings = {key: value for key, value in cloud.settings().items() if isinstance(value, str)}
        kind = settings.pop("adapter")
        words = [f"--set={key}={value}" for key, value in settings.items()]
        invoked("init", "--engine", kind, *words, "--workflow", name, "-c", str(path))
        assert [tool.workflow for tool in load_config(path, {}).tools] == [name]

    verify: ClassVar[Sequence[str]] = []  # words of the command for this engine

    @pytest.mark.slow
    def test_all_promises_hold_on_the_local_engine_and_nothing_stays_behind(
        self, own_cloud: Cloud, tmp_path: Path
    ) -> None:
        config = own_cloud.configured(tmp_path, {"ask": {"workflow": "ask"}})
        words = ["check", "--live", own_cloud.name, "-c", str(config), "--yes", "--json", *self.verify]
        done = run([COMMAND, *words], seconds=180)
        assert done.returncode == 0, done.stdout + done.stderr
        promises = json.loads(done.stdout)["promises"]
        untried = [each["seen"] for each in promises if each["verdict"] == "not tried"]
        assert [each for each in untried if each.startswith("no answer")] == []
        assert len(promises) > 50
        assert "name a sidecar" in str(untried) or "--set " in str(untried)  # what only a user has
        assert not own_cloud.workflows()

    @pytest.mark.usefixtures("processes")
    def test_where_nobody_answers_nothing_is_tried(self, cloud: Cloud, tmp_path: Path) -> None:
        config = cloud.configured(tmp_path, {"ask": {"workflow": "ask"}}, **self.nowhere)
        done = run([COMMAND, "check", "--live", cloud.name, "-c", str(config), "--yes", *self.verify])
        assert (done.returncode, done.stdout) == (1, "")
        assert "127.0.0.1:1" in done.stderr

    nowhere: ClassVar[Mapping[str, Any]] = {}  # settings of an engine that is not there, at port 1


async def until_listed(client: Peer, *names: str) -> None:
    """Until these are the tools."""
    with anyio.fail_after(PATIENCE):
        while {tool["name"] for tool in (await client.send("tools/list")).result["tools"]} != set(names):
            await anyio.sleep(0.05)


class CloudContract(AdapterContract):
    """The laws, of a cloud where a key is of one workflow, and whose list of executions shows those that run."""

    async def test_another_workflow_under_the_same_key_is_refused(self, subject: Subject, adapter: Adapter) -> None:
        """The same key at another workflow is another one.

        The core makes its keys of the tool and of a secret, so that two workflows never get the same.
        """
        start = new_start(subject.finishes)
        other = replace(new_start(subject.fails), key=start.key)
        assert await adapter.start(start) != await adapter.start(other)

    async def test_describe_many_sees_what_describe_sees(self, subject: Subject, adapter: Adapter) -> None:
        """An execution that has ended is left out, and then described."""
        assert isinstance(adapter, DescribesMany)
        ended, running = new_start(subject.finishes), new_start(subject.endless)
        nobody = Ref(workflow="nobody", handle=subject.unknown_handle)
        over = ref_of(ended, await adapter.start(ended))
        await until_ended(subject, adapter, over)
        async with cancelled_afterwards(subject, adapter, running) as ref:
            swept = await adapter.describe_many([ref, over, nobody])
        assert {handle: seen.status for handle, seen in swept.items()} == {ref.handle: Status.RUNNING}
        assert await adapter.describe_many([]) == {}


def page(name: str) -> str:
    """A page of the documentation, or a README by its path from there."""
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def blocks(name: str, language: str) -> Sequence[str]:
    """The fenced blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page(name), re.DOTALL | re.MULTILINE)


class PagesSuite:
    """The pages of an adapter: its configurations load, and its messages are those of the code."""

    package: ClassVar[ModuleType]
    pages: ClassVar[Sequence[str]]
    errors: ClassVar[str]  # the page that explains messages

    def test_every_configuration_can_be_loaded(self, tmp_path: Path) -> None:
        shown = [block.removeprefix("# workflows.yaml\n") for name in self.pages for block in blocks(name, "yaml")]
        found = [block for block in shown if block.startswith("engines:")]
        assert len(found) > 3
        for block in found:
            (tmp_path / "workflows.yaml").write_text(block)
            config = load_config(tmp_path / "workflows.yaml", {})
            for engine in config.engines.values():
                assert engine.kind.__module__.startswith(self.package.__name__)
                assert config.tools or getattr(engine.settings, "discover", None)

    def test_each_message_is_one_of_the_code(self) -> None:
        files = Path(str(self.package.__file__)).parent.glob("*.py")
        code = "\n".join(file.read_text(encoding="utf-8") for file in files)
        whole = re.sub(r'"\n\s*f?"', "", code)  # literals that go over two lines are one
        messages = re.findall(r"^\| `([^`]+)` \|", page(self.errors), re.MULTILINE)
        assert len(messages) > 8
        assert [message for message in messages if message not in whole] == []
