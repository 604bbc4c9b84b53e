"""`mcp-workflows call`, as a person types it and as a script runs it."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import anyio
import mcp_types as types
import pytest

from mcp_workflows import Tool
from mcp_workflows.access.authn.verifier import sha256_of
from mcp_workflows.sidecar.cli.app import WrongUsage
from mcp_workflows.sidecar.cli.arguments import read_arguments, read_pair
from mcp_workflows.sidecar.cli.call import Outcome
from mcp_workflows.sidecar.cli.progress import Screen
from mcp_workflows.sidecar.cli.prompts import Answers, PendingQuestion, Response
from tests.sidecar.cli.terminal import Ended, Terminal
from tests.support.child_processes import free_port
from tests.support.commands import COMMAND, run, start
from tests.support.dev_server import DevServer
from tests.support.local_engines import SAMPLES
from tests.support.served import peer, site
from tests.support.sidecars import sidecar

CONFIG = """
server: {name: calls}
store: sqlite:///tasks.db
engines:
  here: {adapter: memory}
  gone: {adapter: memory, name: gone, unreachable: true}
tools:
  echo:
    engine: here
    workflow: echo
    input:
      type: object
      properties:
        a: {type: integer, description: "How many"}
        express: {type: boolean}
        size: {enum: [small, large]}
        tags: {type: array, items: {type: string}}
        to: {type: object, properties: {city: {type: string}, code: {type: integer}}}
      required: [a]
  ship:
    engine: here
    workflow: echo
    input: {type: object, properties: {a: {type: integer}, approve: {type: boolean}}, required: [a, approve]}
    questions: {approve: {message: "Ship {{a}}?", schema: {type: boolean}, when_missing: true}}
  sleep: {engine: here, workflow: sleep, input: {type: object, properties: {seconds: {type: number}}}}
  ask: {engine: here, workflow: ask_in_turn}
  fail: {engine: here, workflow: fail}
  refused: {engine: here, workflow: protocol_error}
  required: {engine: here, workflow: echo, tasks: required}
  slow: {engine: here, workflow: forever, wait: 200ms}
  lost: {engine: gone, workflow: echo}
  gated:
    engine: here
    workflow: gated
    input: {type: object, properties: {order: {type: string}}, required: [order]}
    questions:
      approve:
        when: {after_seconds: 0}
        message: Ship {{order}}?
        schema: {type: object, properties: {ok: {type: boolean}}, required: [ok]}
        send: {signal: approve, args: ["{{answer.ok}}"]}
"""


@dataclass(frozen=True, slots=True)
class Shell:
    """Runs the command in a folder with a workflows.yaml, as a process; nobody sits at standard input."""

    folder: Path
    env: Mapping[str, str]

    def call(self, *words: str, stdin: str = "") -> Ended:
        done = run([COMMAND, "call", *words], cwd=self.folder, env={**os.environ, **self.env}, given=stdin)
        assert "Traceback" not in done.stderr, done.stderr
        return Ended(code=done.returncode, out=done.stdout, err=done.stderr)

    def typing(self, *words: str, types: Sequence[tuple[str, str]]) -> Ended:
        """The same at a terminal: each text is typed once what comes before it is shown. `out` is all there was."""
        env = {**os.environ, **self.env, "COLUMNS": "200", "TERM": "xterm"}
        terminal, other = pty.openpty()
        command = [COMMAND, "call", *words]
        process = start(command, cwd=self.folder, env=env, stdin=other, stdout=other, stderr=other)
        os.close(other)
        try:
            shown = converse(terminal, list(types))
            return Ended(code=process.wait(60), out=shown, err="")
        except BaseException:
            process.kill()
            process.wait()
            raise
        finally:
            os.close(terminal)


def converse(terminal: int, types: list[tuple[str, str]], within: float = 60) -> str:
    shown, read_to, deadline = "", 0, time.monotonic() + within
    while time.monotonic() < deadline:
        if not select.select([terminal], [], [], 0.1)[0]:
            continue
        try:
            got = os.read(terminal, 65536)
        except OSError:  # Linux's way to say that nobody is at the other end any more
            return shown
        if not got:
            return shown
        shown += got.decode()
        if types and types[0][0] in shown[read_to:]:
            read_to = len(shown)
            os.write(terminal, types.pop(0)[1].encode())
    raise AssertionError(f"it goes on and on; so far:\n{shown}")


@pytest.fixture
def here(terminal: Terminal) -> Terminal:
    (terminal.folder / "workflows.yaml").write_text(CONFIG)
    return terminal


@pytest.fixture
def shell(processes: None, tmp_path: Path) -> Shell:
    (tmp_path / "workflows.yaml").write_text(CONFIG)
    return Shell(tmp_path, {})


def _task_id(text: str) -> str:
    found = re.search(r"--resume ([0-9a-f]{40})", text)
    assert found, text
    return found[1]


# --- what it prints, and the code it ends with


def test_the_result_goes_to_standard_output_and_everything_else_to_standard_error(here: Terminal) -> None:
    ended = here.run("call", "echo", "a=3", "express=yes", "size=large", "tags=x", "tags=y", "to.city=Ulm", "to.code=7")
    assert ended.code == 0
    expected = {"a": 3, "express": True, "size": "large", "tags": ["x", "y"], "to": {"city": "Ulm", "code": 7}}
    assert ended.json == expected
    assert re.search(r"^task [0-9a-f]{40}$", ended.err, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "code", "status"),
    [(["echo", "a=1"], 0, "completed"), (["fail"], 1, "completed"), (["refused"], 1, "failed"), (["lost"], 1, None)],
)
def test_programs_get_one_json_object_and_a_code(
    here: Terminal, words: Sequence[str], code: int, status: str | None
) -> None:
    ended = here.run("call", *words, "--json")
    assert ended.code == code
    assert ended.json["status"] == (status or "completed")
    assert ("taskId" in ended.json) == (status is not None)


def test_arguments_of_a_file_are_read_as_a_server_reads_them(here: Terminal) -> None:
    (here.folder / "arguments.json").write_text('{"a": "5", "size": null}')
    assert here.run("call", "echo", "--args-json", "arguments.json").json == {"a": 5}


def test_standard_input_is_a_file_too_and_never_a_person(shell: Shell) -> None:
    assert shell.call("echo", "--args-json", "-", stdin='{"a": 5}').json == {"a": 5}
    ended = shell.call("ask", stdin="one\n")
    assert (ended.code, "no terminal to ask at" in ended.err) == (2, True)


# --- questions


@pytest.mark.parametrize("more", [[], ["--dry-run"], ["--client", "none"], ["--client", "2025-11-25"]])
def test_a_slip_in_the_name_of_a_question_is_told_before_anything_is_started(
    here: Terminal, more: Sequence[str]
) -> None:
    ended = here.run("call", "gated", "order=A1", "--answer", "aprove.ok=true", *more)
    assert (ended.code, ended.out, "task " in ended.err) == (2, "", False)
    assert "did you mean 'approve.ok'?" in ended.err


def test_the_beginning_of_an_id_is_enough_to_come_back(here: Terminal) -> None:
    task_id = here.run("call", "ask", "--no-wait").out.strip()
    ended = here.run("call", "--resume", task_id[:12], "--answer", "answer=x")
    assert (ended.code, ended.json) == (0, {"first": {"answer": "x"}, "second": {"answer": "x"}})
    assert f"task {task_id}" in ended.err
    here.run("call", "ask", "--no-wait")
    for name, complaint in (("xyz", "no task's id begins with 'xyz'"), ("", "name a tool, or give --resume ID")):
        ended = here.run("call", "--resume", name)
        assert complaint in ended.err
        assert ended.code != 0


def test_the_person_at_the_terminal_is_asked(shell: Shell) -> None:
    types = [("Approve or Decline [1 or 2]", "perhaps\n"), ("is not true or false", "y\n")]
    ended = shell.typing("ship", "a=1", types=types)
    assert ended.code == 0, ended.out
    assert "? [approve] Ship 1?" in ended.out
    assert '"approve": true' in ended.out


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("properties", "required", "can_decline", "typed", "sent"),
    [
        ({}, [], True, ["1"], {"action": "accept", "content": {}}),
        ({}, [], True, ["decline"], {"action": "decline"}),
        ({}, [], False, ["2", "1"], {"action": "accept", "content": {}}),
        ({"ok": "boolean"}, ["ok"], True, ["Approve"], {"action": "accept", "content": {"ok": True}}),
        ({"ok": "boolean"}, ["ok"], True, ["n"], {"action": "decline"}),
        ({"ok": "boolean"}, ["ok"], False, ["2"], {"action": "accept", "content": {"ok": False}}),
        ({"reason": "string"}, [], True, ["1", ""], {"action": "accept", "content": {}}),
        (
            {"reason": "string"},
            ["reason"],
            True,
            ["1", "", "fine"],
            {"action": "accept", "content": {"reason": "fine"}},
        ),
        ({"reason": "string"}, ["reason"], True, ["2", ""], {"action": "decline"}),
        ({"reason": "string"}, [], True, ["2", "no"], {"action": "decline", "content": {"reason": "no"}}),
        (
            {"reason": "string", "ok": "boolean"},
            ["ok"],
            True,
            ["2", "late"],
            {"action": "decline", "content": {"reason": "late"}},
        ),
        ({}, [], True, ["!cancel"], {"action": "cancel"}),
        (
            {"ok": "boolean", "who": "string"},
            ["ok"],
            True,
            ["n", "me"],
            {"action": "accept", "content": {"ok": False, "who": "me"}},
        ),
    ],
)
async def test_a_yes_or_no_is_a_choice_with_a_reason_for_both(
    monkeypatch: pytest.MonkeyPatch,
    properties: Mapping[str, str],
    required: list[str],
    can_decline: bool,
    typed: list[str],
    sent: Mapping[str, Any],
) -> None:
    schema = {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in properties.items()},
        "required": required,
    }
    screen, lines = Screen(), list(typed)

    async def line(prompt: object) -> str:
        return lines.pop(0)

    monkeypatch.setattr(screen, "line", line)
    monkeypatch.setattr(Screen, "asks", True)
    asking = PendingQuestion(key="k", message="Ship?", schema=schema, can_decline=can_decline)
    assert (await Answers([], [], screen).answer(asking)).sent == sent
    assert lines == []


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("words", "sent"),
    [
        (["accept=true", "reason=tested"], {"action": "accept", "content": {"reason": "tested"}}),
        (["accept=true"], {"action": "accept", "content": {}}),
        (["accept=false", "reason=late"], {"action": "decline", "content": {"reason": "late"}}),
    ],
)
async def test_flags_decide_with_a_reason(words: list[str], sent: Mapping[str, Any]) -> None:
    schema = {"type": "object", "properties": {"reason": {"type": "string"}}}
    asking = PendingQuestion(key="k", message="Ship?", schema=schema)
    assert (await Answers([read_pair(word) for word in words], [], Screen()).answer(asking)).sent == sent


@pytest.mark.anyio
async def test_a_reason_alone_decides_nothing() -> None:
    schema = {"type": "object", "properties": {"reason": {"type": "string"}}}
    asking = PendingQuestion(key="k", message="Ship?", schema=schema)
    with pytest.raises(WrongUsage, match="no terminal to ask at"):
        await Answers([read_pair("reason=not on Friday")], [], Screen()).answer(asking)


def test_the_person_may_refuse_with_a_word_or_the_end_of_input(shell: Shell) -> None:
    ended = shell.typing("ask", types=[("answer [text]", "!decline\n"), ("answer [text]", "\x04")])
    assert ended.code == 0
    assert '"action": "decline"' in ended.out
    assert '"action": "cancel"' in ended.out


def test_ctrl_c_at_a_question_leaves_with_130_and_says_how_to_come_back(shell: Shell) -> None:
    ended = shell.typing("ask", types=[("answer [text]", "\x03")])
    assert ended.code == 130
    assert _task_id(ended.out)


# --- eras, and what is only shown


def test_a_dry_run_leaves_no_trace_and_checks_the_arguments(here: Terminal) -> None:
    assert here.run("call", "ship", "a=1", "--dry-run").code == 0
    assert not (here.folder / "tasks.db").exists()
    assert here.run("call", "echo", "a=x", "--dry-run").code == 2


# --- over HTTP


@pytest.mark.usefixtures("processes")
def test_a_task_of_a_server_is_started_left_and_come_back_to(here: Terminal) -> None:
    with sidecar(here.folder / "workflows.yaml") as process:
        begun = here.run("call", "ask", "--no-wait", "--url", process.url)
        assert begun.code == 0
        url = ["--url", process.url]
        ended = here.run("call", "--resume", begun.out.strip(), "--answer", "answer=x", *url)
        assert ended.json == {"first": {"answer": "x"}, "second": {"answer": "x"}}
        begun = here.run("call", "ask", "--no-wait", "--client", "2025-11-25", *url)
        ended = here.run("call", "--resume", begun.out.strip(), "--client", "2025-11-25", "--answer", "answer=y", *url)
        assert ended.json == {"first": {"answer": "y"}, "second": {"answer": "y"}}
        assert (
            here.run("call", "--resume", begun.out.strip()).json == ended.json
        )  # the store's operator may, whoever's it is
        first = here.run("call", "sleep", "seconds=0", "--idempotency-key", "k" * 32, "--no-wait", *url)
        assert here.run("call", "sleep", "seconds=0", "--idempotency-key", "k" * 32, "--no-wait", *url).out == first.out
        unknown = here.run("call", "--resume", "0" * 40, *url)
        assert (unknown.code, "not found" in unknown.err) == (1, True)
        assert (
            "no MCP server answers at that address" in here.run("call", "echo", "a=1", "--url", process.url + "/no").err
        )


@pytest.mark.usefixtures("processes")
def test_a_server_that_asks_who_calls_is_shown_a_token_from_a_file(here: Terminal) -> None:
    auth = f"auth: {{tokens: [{{name: ci, sha256: {sha256_of('secret')}, subject: alice}}]}}"
    config = CONFIG.replace("{name: calls}", f"{{name: calls, {auth}}}")
    (here.folder / "asking.yaml").write_text(config)
    (here.folder / "token").write_text("secret\n")
    (here.folder / "other").write_text("another")
    with sidecar(here.folder / "asking.yaml") as process:
        url = ["--url", process.url]
        nobody = here.run("call", "echo", "a=1", *url)
        assert (nobody.code, nobody.err) == (1, f"{process.url}: it needs a token; give one with --token-file\n")
        stranger = here.run("call", "echo", "a=1", *url, "--token-file", "other")
        assert (stranger.code, "the token is not valid there" in stranger.err) == (1, True)
        begun = here.run("call", "ask", *url, "--token-file", "token")
        assert f"{process.url} --token-file token" in begun.err  # how to come back
        for era in ("2026-07-28", "2025-11-25"):
            known = here.run("call", "echo", "a=1", *url, "--token-file", "token", "--client", era)
            assert (known.code, known.json) == (0, {"a": 1})
    assert "secret" not in nobody.err + stranger.err + begun.err + known.err


# --- the real engine


@contextmanager
def _worker(shell: Shell) -> Generator[None]:
    folder = SAMPLES / "orders"
    with (shell.folder / "worker.log").open("wb") as log:
        environment = {**os.environ, **shell.env}
        process = subprocess.Popen([sys.executable, "worker.py"], cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture
def orders(dev_server: DevServer, tmp_path: Path) -> Generator[Shell]:
    """The order sample on the real engine, with a worker."""
    env = {
        "TEMPORAL_ADDRESS": dev_server.address,
        "MCP_WORKFLOWS_STORE": f"sqlite:///{tmp_path}/tasks.db",
        "SHOP_FILE": str(tmp_path / "shop.json"),
        "SHOP_PACE": "0.5",
        "PYTHONPATH": str(SAMPLES / "orders"),
    }
    config = (SAMPLES / "orders" / "workflows.yaml").read_text()
    (tmp_path / "workflows.yaml").write_text(config)
    shell = Shell(tmp_path, env)
    with _worker(shell):
        yield shell


def test_ctrl_c_leaves_the_workflow_running_and_resume_brings_its_result(orders: Shell) -> None:
    ctrl_c = ("task ", "\x03")  # not at a step: the first look at a busy machine may come after it
    left = orders.typing("fulfil_order", "order_id=A-1001", "reason=x", types=[ctrl_c])
    assert left.code == 130, left.out
    ended = orders.call("--resume", _task_id(left.out), "--json")
    assert ended.code == 0, ended.err
    assert ended.json["result"]["structuredContent"]["status"] == "shipped"


@pytest.mark.anyio
async def test_an_approver_who_may_not_see_the_result_answers_all_the_same(here: Terminal, tmp_path: Path) -> None:
    rules = {"call": {}, "see": {}, "answer": {"scopes": ["ops"], "not_owner": True}}
    asks = Tool.model_validate({"name": "ask", "engine": "memory", "workflow": "ask", "allow": rules})
    store = f"sqlite:///{tmp_path}/served.db"
    async with site(store=store, tools=[asks], authenticated=True) as found, peer(found.url, token="anna") as anna:
        task_id = (await anna.call("ask")).result["taskId"]
        (here.folder / "token").write_text("bob+ops")
        words = ("--resume", task_id, "--url", found.url, "--token-file", "token", "--answer", "answer=yes")
        ended = await anyio.to_thread.run_sync(lambda: here.run("call", *words))
        assert (ended.code, ended.out) == (0, "answered; the result is for those who may see the task\n")
        assert (await anna.until(task_id))["status"] == "completed"


# --- matching and typing, without a process


@pytest.mark.parametrize("is_error", [False, True])
def test_a_result_steers_no_terminal_not_even_through_a_pipe(
    is_error: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = types.TextContent(type="text", text="a\x1b[2J\x1b]0;b\x07\nc")
    outcome = Outcome(result=types.CallToolResult(content=[text], is_error=is_error))
    outcome.tell(None, as_json=False)
    assert "".join(capsys.readouterr()) == "a [2J ]0;b \nc\n"
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    outcome.tell(None, as_json=False)
    assert "".join(capsys.readouterr()) == "a [2J ]0;b \nc\n"


def test_an_error_is_printed_with_its_structure(capsys: pytest.CaptureFixture[str]) -> None:
    text: list[types.ContentBlock] = [types.TextContent(type="text", text="no luck")]
    ours = {"error": {"message": "no luck", "type": "OutOfStock", "details": [{"sku": 7}], "retryable": False}}
    for structured, printed in (
        (ours, ["type: OutOfStock", 'details: [{"sku": 7}]', "retryable: false"]),
        ({"unchecked_result": json.dumps(ours)}, ["type: OutOfStock", 'details: [{"sku": 7}]', "retryable: false"]),
        ({"code": 7}, ['{"code": 7}']),
    ):
        result = types.CallToolResult(content=text, structured_content=structured, is_error=True)
        assert Outcome(result=result).tell(None, as_json=False) == 1
        assert capsys.readouterr().err.splitlines() == ["no luck", *printed]


FORM: Mapping[str, Any] = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "note": {"type": "string", "default": "-"}},
}


@pytest.mark.parametrize(
    ("flag", "key", "content"),
    [
        ("ok=true", "anything", {"ok": True, "note": "-"}),
        ("ok=true", None, {"ok": True, "note": "-"}),
        ("approve.ok=no", "approve", {"ok": False, "note": "-"}),
        ("approve.ok=no", "approve.17", {"ok": False, "note": "-"}),
        ("approve.ok:=true", "approve.17", {"ok": True, "note": "-"}),
        ("approve.ok=no", "approved", {}),
        ("approve.ok=no", "deploy.17", {}),
        ("approve.ok=no", None, {}),
        ("other=no", "approve", {}),
    ],
)
def test_a_flag_answers_the_questions_it_names(flag: str, key: str | None, content: Mapping[str, Any]) -> None:
    assert Answers([read_pair(flag)], [], Screen()).from_flags(question(key)) == content


def question(key: str | None, name: str | None = None) -> PendingQuestion:
    return PendingQuestion(key=key, name=name, message="?", schema={**FORM})


@pytest.mark.parametrize("key", ["approve.7", "5", "approve/projects/p/callbacks/0e7a6c1b", "approve.7.4f1c-9d", None])
@pytest.mark.parametrize("word", ["approve", "5", "other"])
def test_a_question_is_named_by_what_the_configuration_calls_it_whatever_its_key(key: str | None, word: str) -> None:
    asked = Answers([read_pair(f"{word}.ok=true")], [], Screen())
    assert bool(asked.from_flags(question(key, "approve"))) == (word in {"approve", key})


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("answers", "declined", "action"),
    [(["accept=yes"], [], "accept"), (["accept=no"], [], "decline"), ([], ["accept"], "decline"), ([], [], None)],
)
async def test_a_question_without_fields_is_not_accepted_by_itself(
    answers: Sequence[str], declined: Sequence[str], action: Literal["accept", "decline"] | None
) -> None:
    asking = PendingQuestion(key="cb-1", message="Sign?", schema={"type": "object", "properties": {}})
    asked = Answers([read_pair(word) for word in answers], declined, Screen())
    if action is None:
        with pytest.raises(WrongUsage, match="--answer accept=true\nor refuse it with: --decline accept"):
            await asked.answer(asking)
        return
    assert (await asked.answer(asking)) == Response(action=action, content={} if action == "accept" else None)


@pytest.mark.parametrize(
    ("schema", "words", "arguments"),
    [
        ({}, ["a=1", "b:=1"], {"a": "1", "b": 1}),
        ({"a": {"type": ["integer", "null"]}}, ["a=1"], {"a": 1}),
        ({"a": {"anyOf": [{"type": "number"}, {"type": "null"}]}}, ["a=1.5"], {"a": 1.5}),
        ({"a": {"type": "number"}}, ["a=12"], {"a": 12}),
        ({"a": {"type": "number"}}, ["a=1e2"], {"a": 100.0}),
        ({"a": {"type": "string"}}, ["a=true"], {"a": "true"}),
        ({"a": {"enum": [1, 2]}}, ["a=2"], {"a": 2}),
        ({"a": {"type": "array", "items": {"type": "integer"}}}, ["a=1"], {"a": [1]}),
        ({"a": {"type": "array"}}, ["a=[1, 2]"], {"a": [1, 2]}),
        ({"a": {"$ref": "#/$defs/A"}}, ["a.b=1"], {"a": {"b": 1}}),
        ({"a.b": {"type": "integer"}}, ["a.b=1"], {"a.b": 1}),
        ({"a": {}}, ["a=x=y"], {"a": "x=y"}),
    ],
)
def test_words_become_arguments_by_the_schema(
    schema: Mapping[str, Any], words: Sequence[str], arguments: Mapping[str, Any]
) -> None:
    defs = {"A": {"type": "object", "properties": {"b": {"type": "integer"}}}}
    whole = {"type": "object", "properties": schema, "$defs": defs}
    found = read_arguments(map(read_pair, words), whole, {})
    assert json.dumps(found) == json.dumps(arguments), "12 and 12.0 are equal, and read differently"


def test_a_client_without_tasks_that_is_handed_one_says_how_to_come_back_and_can_follow_it(here: Terminal) -> None:
    ended = here.run("call", "slow", "--client", "none", "--json")
    task_id = ended.json["taskId"]
    assert (ended.code, ended.json["status"]) == (0, "working"), "and not completed"
    assert f"the task continues; come back with: mcp-workflows call --resume {task_id}\n" in ended.err
    waited = here.run("call", "task_wait", f"taskId={task_id}", "seconds=0", "--client", "none")
    assert waited.json["status"] == "working"


def test_a_server_that_is_not_there_is_one_clear_line(here: Terminal) -> None:
    url = f"http://127.0.0.1:{free_port()}/mcp"
    ended = here.run("call", "echo", "a=1", "--url", url)
    assert ended.code == 1
    assert ended.err.startswith(f"{url}: no answer")
    port = url.removesuffix("/mcp").rpartition(":")[2]
    started = f"Start it: mcp-workflows serve workflows.yaml --http 127.0.0.1:{port}"
    assert f"is `mcp-workflows serve` running there? {started}\n" in ended.err
