"""The audit log: exactly what happened to a task, nothing of anybody's payload, and no request that waits for it."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from jsonschema import Draft202012Validator
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mcp_workflows.access.audit import Event, Record, task_hash
from mcp_workflows.adapter import JSON, Ref
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.errors import ConfigError
from mcp_workflows.sidecar.app import build, http_app, run_stdio
from mcp_workflows.sidecar.checks import check
from mcp_workflows.sidecar.config.load import load_config
from mcp_workflows.sidecar.telemetry.exporters import WAITING, AuditLog, Exporters, to_file
from mcp_workflows.telemetry import Telemetry
from tests.support.served import Peer, peer, serving, site
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

SCHEMA = Path(__file__).parents[3] / "docs" / "reference" / "audit-event.schema.json"
ARGUMENT, ANSWER, TOKEN = "an-argument-nobody-records", "an-answer-nobody-records", "a-token-nobody-records"
TRACE = "0af7651916cd43dd8448eb211c80319c"

CONFIG = """
server: {{name: audited}}
store: sqlite:///tasks.db
audit: {audit}
{more}
engines: {{here: {{adapter: memory, name: {name}}}}}
tools:
  ask:
    engine: here
    workflow: ask
    input: {{type: object, properties: {{order: {{type: string}}}}}}
  echo:
    engine: here
    workflow: echo
    input: {{type: object, properties: {{order: {{type: string}}}}}}
    tasks: forbidden
"""


@asynccontextmanager
async def audited(folder: Path, audit: str = "{to: audit.jsonl}", more: str = "") -> AsyncGenerator[Peer]:
    """A client of a sidecar that keeps such a record."""
    path = folder / "workflows.yaml"
    path.write_text(CONFIG.format(audit=audit, more=more, name=f"{folder.parent.name}-{folder.name}"))
    config = load_config(path, {})
    async with serving(http_app(build(config), config, "127.0.0.1", 0)) as url, peer(url, token=TOKEN) as client:
        yield client


def lines(file: Path) -> Sequence[Mapping[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def short(events: Sequence[Mapping[str, Any]]) -> Sequence[tuple[str, str]]:
    return [(event["event"], event["outcome"]) for event in events]


async def a_life(client: Peer) -> str:
    """A task from its creation to its result, and the id of it."""
    meta = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
    task_id = str((await client.call("ask", {"order": ARGUMENT}, meta=meta)).result["taskId"])
    asked = await client.until(task_id, "input_required")
    [question] = asked["inputRequests"]
    reply = await client.answer(task_id, **{question: {"action": "accept", "content": {"answer": ANSWER}}})
    assert reply.result is not None
    ended = await client.until(task_id)
    assert ended["status"] == "completed"
    assert ANSWER in json.dumps(ended)
    return task_id


async def test_of_answers_at_the_same_time_only_the_one_that_is_taken_is_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = MemoryAdapter.answer

    async def answer_slowly(self: MemoryAdapter, ref: Ref, responses: Mapping[str, JSON]) -> None:
        await anyio.sleep(0.3)
        await take(self, ref, responses)

    monkeypatch.setattr(MemoryAdapter, "answer", answer_slowly)
    async with audited(tmp_path) as client:
        task_id = str((await client.call("ask", {"order": ARGUMENT})).result["taskId"])
        [question] = (await client.until(task_id, "input_required"))["inputRequests"]
        async with anyio.create_task_group() as group:
            for action in ("accept", "decline", "decline", "decline"):
                answer = {"action": action, **({"content": {"answer": ANSWER}} if action == "accept" else {})}
                group.start_soon(lambda given: client.answer(task_id, **{question: given}), answer)
        await client.until(task_id)
    assert short(lines(tmp_path / "audit.jsonl")).count(("answer", "ok")) == 1


async def test_the_record_of_one_task_is_its_life_and_nothing_else(tmp_path: Path) -> None:
    async with audited(tmp_path) as client:
        task_id = await a_life(client)
    text = (tmp_path / "audit.jsonl").read_text()
    events = lines(tmp_path / "audit.jsonl")
    assert short(events) == [
        ("create", "ok"),
        ("status", "input_required"),
        ("answer", "ok"),
        ("status", "succeeded"),
        ("retrieve", "ok"),
    ]
    for secret in (ARGUMENT, ANSWER, TOKEN, task_id):
        assert secret not in text
    assert {event["trace_id"] for event in events if event["event"] in ("create", "status")} == {TRACE}
    assert len({event["task"] for event in events}) == 1
    assert {event["principal"] for event in events} == {"anonymous"}
    assert {(event["tool"], event["engine"], event["workflow"]) for event in events} == {("ask", "here", "ask")}


async def test_every_line_fits_the_published_schema(tmp_path: Path) -> None:
    async with audited(tmp_path, "{to: audit.jsonl, include: [arguments, results]}") as client:
        await a_life(client)
    validator = Draft202012Validator(json.loads(SCHEMA.read_text()))
    for event in lines(tmp_path / "audit.jsonl"):
        validator.validate(event)  # pyright: ignore[reportUnknownMemberType]  # untyped there


async def test_payloads_are_recorded_only_where_they_are_asked_for(tmp_path: Path) -> None:
    async with audited(tmp_path, "{to: audit.jsonl, include: [arguments, results]}") as client:
        await a_life(client)
    events = {event["event"]: event for event in lines(tmp_path / "audit.jsonl")}
    assert events["create"]["arguments"] == {"order": ARGUMENT}
    assert ANSWER in json.dumps(events["retrieve"]["result"])
    assert events["answer"]["arguments"] is None
    assert TOKEN not in (tmp_path / "audit.jsonl").read_text()


async def test_what_is_denied_is_recorded_without_the_id(tmp_path: Path) -> None:
    async with audited(tmp_path) as client:
        assert (await client.send("tasks/get", {"taskId": "0" * 40})).code == -32602
    [event] = lines(tmp_path / "audit.jsonl")
    assert (event["event"], event["outcome"], event["tool"]) == ("deny", "refused", None)
    assert event["task"] == task_hash("0" * 40)
    assert "0" * 40 not in (tmp_path / "audit.jsonl").read_text()


async def test_a_file_that_was_moved_away_is_begun_anew(tmp_path: Path) -> None:
    file, moved = tmp_path / "audit.jsonl", tmp_path / "audit.jsonl.1"
    async with audited(tmp_path) as client:
        await client.call("echo", {"order": "1"})
        of_one_call = [("create", "ok"), ("status", "succeeded"), ("retrieve", "ok")]
        await until(lambda: file.exists() and short(lines(file)) == of_one_call)
        file.rename(moved)
        await client.call("echo", {"order": "2"})
        await until(lambda: file.exists() and short(lines(file)) == of_one_call)
    assert short(lines(moved)) == of_one_call


async def test_a_full_disk_fails_no_request_and_is_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with audited(tmp_path, "{to: /dev/full}") as client:
        result = (await client.call("echo", {"order": "1"})).result
        assert result["isError"] is False
    assert [record.getMessage() for record in caplog.records if "audit" in record.getMessage()] == [
        "audit events are lost: No space left on device; requests are still served"
    ]


async def test_a_file_that_cannot_be_written_is_said_before_anything_is_served(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"audit.to: cannot be written: No such file or directory"):
        async with AuditLog(to_file(tmp_path / "none" / "audit"), telemetry=Telemetry(), server="s"):
            pass


async def test_strangers_on_the_machine_cannot_read_it(tmp_path: Path) -> None:
    async with AuditLog(to_file(tmp_path / "audit"), telemetry=Telemetry(), server="s"):
        assert not (tmp_path / "audit").stat().st_mode & 0o007


async def test_check_says_whether_the_file_could_be_written_and_begins_none(tmp_path: Path) -> None:
    (tmp_path / "workflows.yaml").write_text(
        "store: sqlite:///tasks.db\nengines: {here: {adapter: memory}}\naudit: {to: logs/audit.jsonl}\n"
        "tools: {echo: {engine: here, workflow: echo}}\n"
    )
    config = load_config(tmp_path / "workflows.yaml", {})
    [told] = (await check(config)).as_json()["audit"]
    assert (told["ok"], told["text"]) == (False, f"the folder {tmp_path / 'logs'} does not exist")
    (tmp_path / "logs").mkdir()
    assert (await check(config)).problems == 0
    assert not (tmp_path / "logs" / "audit.jsonl").exists()


async def test_a_queue_that_is_full_loses_events_and_never_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recording = AuditLog(to_file(tmp_path / "audit"), telemetry=Telemetry(), server="s")
    with anyio.fail_after(60):
        for _ in range(WAITING + 3):
            recording(Record(event=Event.LIMIT, principal=None))  # not entered: nothing takes them out
        assert [r.getMessage() for r in caplog.records] == [
            "audit events are lost: they arrive faster than they can be written; requests are still served"
        ]
        async with recording:
            pass
    assert len((tmp_path / "audit").read_text().splitlines()) == WAITING


async def test_on_stdio_standard_output_is_refused(tmp_path: Path) -> None:
    (tmp_path / "workflows.yaml").write_text(CONFIG.format(audit="{to: stdout}", more="", name="x"))
    with pytest.raises(ConfigError, match=r"audit.to: standard output is what the client reads"):
        await run_stdio(load_config(tmp_path / "workflows.yaml", {}))


def test_an_extra_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "mcp_workflows.sidecar.telemetry.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk._logs", None)  # as if it were not installed
    path = tmp_path / "workflows.yaml"
    path.write_text(CONFIG.format(audit="{to: otlp}", more="", name="x"))
    config = load_config(path, {})
    with pytest.raises(ConfigError, match=r"pip install 'mcp-workflows\[otlp\]'"):
        Exporters(config.audit, otlp=config.telemetry, name="x", version="1")


async def test_a_collector_gets_the_events_as_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[ExportLogsServiceRequest] = []
    sent: list[str | None] = []

    async def take(request: Request) -> Response:
        body = ExportLogsServiceRequest()
        body.ParseFromString(await request.body())
        got.append(body)
        sent.append(request.headers.get("x-key"))
        return Response(b"", media_type="application/x-protobuf")

    collector = Starlette(routes=[Route("/v1/logs", take, methods=["POST"])])
    async with serving(collector) as url:
        logging.getLogger("opentelemetry").setLevel(logging.ERROR)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url.removesuffix("/mcp"))
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=k")
        async with audited(tmp_path, "{to: otlp}") as client:
            await a_life(client)
    records = [record for body in got for logs in body.resource_logs for scope in logs.scope_logs
               for record in scope.log_records]  # fmt: skip
    events = [json.loads(record.body.string_value) for record in records]
    assert short(events)[0] == ("create", "ok")
    assert short(events)[-1] == ("retrieve", "ok")
    assert {record.event_name for record in records} == {"mcp_workflows.audit"}
    assert set(sent) == {"k"}


async def test_of_two_replicas_one_records_a_change(tmp_path: Path) -> None:
    records: list[Record] = []
    store, name = f"sqlite:///{tmp_path}/tasks.db", f"{tmp_path}"
    here, there = (MemoryAdapter(MemorySettings(name=name)) for _ in range(2))
    async with (
        site(store=store, adapters={"memory": here}, audit=records.append) as one,
        site(store=store, adapters={"memory": there}, audit=records.append) as other,
        peer(one.url) as client,
        peer(other.url) as second,
    ):
        tasks = [str((await client.call("ask")).result["taskId"]) for _ in range(5)]
        async with anyio.create_task_group() as group:
            for task_id in tasks:
                for each in (client, second):
                    group.start_soon(each.until, task_id, "input_required")
    told = [record.task for record in records if record.event is Event.STATUS]
    assert sorted(told, key=str) == sorted(map(task_hash, tasks))
    assert {record.principal for record in records} == {"anonymous"}
