"""The command `mcp-workflows call`: run a tool's workflow from the terminal, as a host would.

The result goes to standard output; progress, questions and errors to standard error.
"""

from __future__ import annotations

import json
import logging
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, cast
from urllib.parse import urlsplit

import anyio
import mcp_types as types
import typer
from mcp.shared.exceptions import MCPError

from mcp_workflows.access import LOCAL, Principal, is_loopback
from mcp_workflows.adapter import Start
from mcp_workflows.client import TaskNotFound, TaskState
from mcp_workflows.client.connection import ClientKind, Connection, connect
from mcp_workflows.client.http import known_http
from mcp_workflows.errors import NotLetIn, ServerUnreachable, TaskCancelled
from mcp_workflows.kit.tooling import Previews
from mcp_workflows.sidecar import DISTRIBUTION
from mcp_workflows.sidecar.app import DiscoveryMode, build
from mcp_workflows.sidecar.cli.app import WrongUsage, app, harmless
from mcp_workflows.sidecar.cli.arguments import Schema, describe, named, read_arguments, read_pair
from mcp_workflows.sidecar.cli.format import in_words
from mcp_workflows.sidecar.cli.options import (
    DEFAULT_CONFIG,
    AsJson,
    ConfigOption,
    LogLevel,
    command_line,
    load,
    log,
    names_in,
)
from mcp_workflows.sidecar.cli.progress import INTERRUPTED, Screen
from mcp_workflows.sidecar.cli.prompts import Answers, PendingQuestion, question_of
from mcp_workflows.sidecar.config.models import Config
from mcp_workflows.sidecar.operator import find_task
from mcp_workflows.sidecar.telemetry.exporters import exporters_of
from mcp_workflows.tasks.results import error_in
from mcp_workflows.tools.dialogue import Dialogue, confirmation, still_to_ask
from mcp_workflows.tools.prepare import fill_templates
from mcp_workflows.tools.tool import EXECUTION_ID, AnyTool, Kind
from mcp_workflows.wire.v2026_07_28 import MISSING_CAPABILITY

RECONNECT_SECONDS = 60.0  # how long a server may be unreachable while its task is followed
NEW = "0" * 40  # in a dry run: the id and the key of the start


@app.command()
def call(
    tool: Annotated[
        str | None,
        typer.Argument(metavar="TOOL", help="The tool to call; none with --resume.", autocompletion=names_in("tools")),
    ] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Arguments; KEY:=JSON for values that are not text.")
    ] = None,
    args_json: Annotated[
        typer.FileText | None,
        typer.Option("--args-json", metavar="FILE", help="Read arguments from a JSON file; - for stdin."),
    ] = None,
    answer: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME.FIELD=VALUE", help="Answer a question; FIELD=VALUE: any with that field."),
    ] = None,
    decline: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Decline a question, by its name or one of its fields.")
    ] = None,
    client: Annotated[ClientKind, typer.Option(help="The kind of client to act as.")] = ClientKind.TASKS,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be sent; start nothing.")] = False,
    as_json: AsJson = False,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Print the task's id and exit.")] = False,
    resume: Annotated[
        str | None, typer.Option(metavar="ID", help="Continue with a task; the beginning of its id is enough.")
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="The same key and arguments start one workflow, not two.")
    ] = None,
    config: ConfigOption = DEFAULT_CONFIG,
    url: Annotated[str | None, typer.Option(metavar="URL", help="Call this server, not that of CONFIG.")] = None,
    token_file: Annotated[
        typer.FileText | None,
        typer.Option(metavar="FILE", help="With --url: read a bearer token from a file; - for stdin."),
    ] = None,
) -> None:
    """Call a tool, answer its questions and wait for the result. Ctrl-C leaves the workflow running.

    Exit code 0: success, 1: failed or cancelled, 2: wrong usage, 130: interrupted.
    """
    log(LogLevel.ERROR)
    logging.getLogger("mcp").setLevel(logging.CRITICAL)  # the screen reports the state of the connection
    given, token = _read_json(args_json), _read_token(token_file)
    problems = {
        "name a tool, or give --resume ID": not tool and not resume,
        "--resume ID takes no tool and no arguments": bool(resume and (tool or given)),
        f"--resume needs tasks: leave out --client {client}": bool(resume) and client is ClientKind.NONE,
        f"--no-wait needs tasks: leave out --client {client}": no_wait and client is ClientKind.NONE,
        "--dry-run needs the configuration: leave out --url": dry_run and url is not None,
        "--token-file needs --url: without it you are the local user": token is not None and url is None,
        "--dry-run starts nothing, so there is nothing to resume": dry_run and resume is not None,
    }
    for problem, is_there in problems.items():
        if is_there:
            raise WrongUsage(problem)
    screen = Screen()
    try:
        answers = Answers([read_pair(word) for word in answer or []], decline or [], screen)
    except WrongUsage as error:
        raise WrongUsage(f"--answer {error}") from None
    made = _Call(
        tool=tool or "",
        words=arguments or [],
        given=given,
        answers=answers,
        screen=screen,
        resume=resume,
        client=client,
        wait=not no_wait,
        key=idempotency_key,
        file=config,
        config=None if url else load(config),
        url=url or "",
        token=token,
        token_file=token_file.name if token_file and token_file.name != "<stdin>" else None,
    )
    try:
        if dry_run:
            anyio.run(made.dry_run)
            return
        outcome = anyio.run(made.outcome)
    except WrongUsage as error:
        raise WrongUsage(f"{error}\n{made.left_behind()}" if screen.task_id else str(error)) from None
    except KeyboardInterrupt:
        screen.note(made.left_behind())
        raise typer.Exit(INTERRUPTED) from None
    raise typer.Exit(outcome.tell(screen.task_id, as_json=as_json))


def _read_json(file: typer.FileText | None) -> Mapping[str, Any]:  # Any: JSON
    """Return the object of `--args-json`.

    Raises:
        WrongUsage: not a JSON object.
    """
    if file is None:
        return {}
    try:
        found = json.load(file)
    except json.JSONDecodeError as error:
        raise WrongUsage(f"--args-json: not JSON: {error.msg} (line {error.lineno}, column {error.colno})") from None
    if not isinstance(found, dict):
        raise WrongUsage("--args-json: must be a JSON object")
    return cast("Mapping[str, Any]", found)


def _read_token(file: typer.FileText | None) -> str | None:
    """Return the content of `--token-file` without surrounding whitespace.

    Raises:
        WrongUsage: not a valid token.
    """
    if file is None:
        return None
    token = file.read().strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise WrongUsage("--token-file: the file must contain one token and nothing else")
    return token


@dataclass(slots=True, kw_only=True)
class _Call:
    """One call of a tool, from the configuration or at a URL."""

    tool: str  # empty: `resume` names a task
    words: Sequence[str]
    given: Mapping[str, Any]  # Any: JSON
    answers: Answers
    screen: Screen
    resume: str | None
    client: ClientKind
    wait: bool
    key: str | None
    file: Path
    config: Config | None  # None: the server is at `url`
    url: str
    token: str | None = field(repr=False)
    token_file: str | None
    has_answered: bool = False

    async def dry_run(self) -> None:
        """Print the request that would be sent."""
        assert self.config is not None, "the command says so"
        tool = named(self.tool, self.config.tools)
        self.answers.check(tool.asks)
        sent = await preview(self.config, tool, self._arguments(tool.input, tool), self.answers)
        typer.echo("dry run: nothing was started; this would be sent", err=True)
        typer.echo(json.dumps(sent, indent=2, ensure_ascii=False, default=str))

    async def outcome(self) -> Outcome:
        """Return the outcome; reconnect as needed, as tasks survive a restart of the server.

        Raises:
            NotLetIn: the server requires a token, or another one.
            ServerUnreachable: the server does not reply, or remains unreachable.
        """
        screen, lost_at = self.screen, 0.0
        while True:
            try:
                outcome = await self._outcome_of_connection()
                break
            except NotLetIn as error:
                other = "; give one with --token-file" if self.token is None else ""
                left = f"; {self.left_behind()}" if self.token and screen.task_id else ""
                raise NotLetIn(f"{self.url}: {error}{other}{left}") from None
            except ServerUnreachable as error:
                if screen.task_id is None:
                    raise ServerUnreachable(f"{self.url}: {error}; {self._is_it_running()}") from None
                if screen.heard_at >= lost_at:  # the server has replied in the meantime
                    lost_at = anyio.current_time()
                if anyio.current_time() > lost_at + RECONNECT_SECONDS:
                    raise ServerUnreachable(f"{self.url}: {error}; {self.left_behind()}") from None
            screen.lost()
            self.resume = screen.task_id
            await anyio.sleep(1)
        if outcome.error and outcome.error.code == MISSING_CAPABILITY and self.client is not ClientKind.TASKS:
            screen.note(f"--client {self.client} does not support this: omit that option")
        if outcome.error and self.resume and self.url and not screen.followed:
            screen.note("with --url, --resume needs the full task id: mcp-workflows tasks show ID prints it")
        if outcome.handle:
            self.client = ClientKind.TASKS
            screen.note(self.left_behind(outcome.handle["taskId"]))
        if outcome.error and screen.followed:
            screen.note(self.left_behind())
        early = "" if self.wait else " (--no-wait exits before a task asks)"
        for flag in self.answers.unused:
            screen.note(f"note: no question used {flag}{early}")
        return outcome

    async def _outcome_of_connection(self) -> Outcome:
        server: Any  # a server in this process, or a transport: see `connect`
        if self.config:
            local = LOCAL
            if self.resume:  # as its owner: a reader of the store may act for the owner
                async with self.config.store.open() as store:
                    task = await find_task(store, self.resume)
                self.resume, local = task.id, Principal(id=task.owner)
            may_be_marked = bool(self.tool) and self._configured() is None
            discovery_mode = DiscoveryMode.ONCE if may_be_marked else DiscoveryMode.NEVER
            exporters = exporters_of(self.config, printing=True)
            server = build(self.config, local=local, discovery_mode=discovery_mode, exporters=exporters).server
        else:
            server = known_http(self.url, self.token)
        outcome = Outcome()
        async with connect(server, kind=self.client, on_status=self.screen.state, elicit=self._elicit) as connection:
            try:
                with self.screen.running():
                    outcome = await self._outcome_at(connection)
            except MCPError as error:
                outcome = Outcome(error=error.error)
            except TaskCancelled as error:
                outcome = Outcome(cancelled=str(error))
        return outcome

    async def _elicit(self, key: str | None, params: types.ElicitRequestParams) -> types.ElicitResult:
        question = question_of(key, params.model_dump(by_alias=True, mode="json", exclude_none=True))
        assert question is not None, "the SDK has validated it"
        self.has_answered = True
        return types.ElicitResult.model_validate((await self.answers.answer(question)).sent)

    async def _outcome_at(self, connection: Connection) -> Outcome:
        if self.resume:
            self.screen.task_id = self.resume
            try:
                return Outcome(result=await connection.result(self.resume))
            except TaskNotFound:
                if not self.has_answered:
                    raise
                text = types.TextContent(type="text", text="answered; the result is for those who may see the task")
                return Outcome(result=types.CallToolResult(content=[text]))
        if self.client is ClientKind.TASKS and not connection.offers_tasks:
            spoken = connection.client.protocol_version
            self.screen.note(f"the server offers no tasks (it speaks {spoken}): waiting for the plain result")
        tool, ours = named(self.tool, await connection.tools()), self._configured()
        if ours:
            self.answers.check(ours.asks)
        arguments = self._arguments(tool.input_schema, ours)
        begun = await connection.start(tool, arguments, key=self.key, progress=self.screen.progress)
        if isinstance(begun, types.CallToolResult):
            return Outcome(result=begun, no_task=True)
        if self.wait:
            return Outcome(result=await connection.result(begun))
        if sys.stderr.isatty():
            self.screen.note(self.left_behind(begun.state.task_id))
        return Outcome(begun=begun.state)

    def _configured(self) -> AnyTool | None:
        """Return the tool in the configuration; None for a task tool or a tool of another server."""
        tools = self.config.tools if self.config else ()
        return next((tool for tool in tools if tool.name == self.tool), None)

    def _arguments(self, schema: Schema, tool: AnyTool | None) -> dict[str, Any]:  # Any: JSON
        """Return the arguments, validated for a configured tool; those that the tool's questions provide may be
        missing."""
        arguments = read_arguments(map(read_pair, self.words), schema, self.given)
        if tool is None:
            return arguments
        arguments = cast("dict[str, Any]", tool.checker.normalize(arguments))
        properties: Schema = schema.get("properties", {})
        brought = frozenset(name for question in tool.ask for name in tool.ask[question].answers(question))
        if missing := [name for name in schema.get("required", ()) if name not in {*arguments, *brought}]:
            raise WrongUsage("missing: " + "; ".join(describe(name, properties.get(name, {})) for name in missing))
        if wrong := tool.complaints(arguments, to_be_asked=brought):
            raise WrongUsage("wrong arguments: " + "; ".join(wrong))
        return arguments

    def _is_it_running(self) -> str:
        """Return a suggestion for a URL without a reply."""
        place = urlsplit(self.url)
        asked = f"is `{DISTRIBUTION} serve` running there?"
        if not is_loopback(place.hostname or "") or place.port is None:
            return asked
        start = [DISTRIBUTION, "serve", str(self.file), "--http", place.netloc.rpartition("@")[2]]
        return f"{asked} Start it: {shlex.join(start)}"

    def left_behind(self, task_id: str | None = None) -> str:
        """Return the command to resume the task, at the same server and as the same kind of client."""
        task_id = task_id or self.screen.task_id
        if task_id is None:
            return "interrupted; anything started continues, but no task id is known to resume it"
        words = ["call", "--resume", task_id, *([] if self.client is ClientKind.TASKS else ["--client", self.client])]
        if self.config:
            command = command_line(*words, config=self.file)
        else:
            token = ["--token-file", self.token_file] if self.token_file else []
            command = shlex.join([DISTRIBUTION, *words, "--url", self.url, *token])
        return f"the task continues; come back with: {command}"


async def preview(
    config: Config, tool: AnyTool, given: Mapping[str, Any], answers: Answers
) -> dict[str, Any]:  # Any: JSON
    """Return the start for the adapter and, if the adapter supports that, the request to the engine.

    For a tool that watches, return the execution that it would adopt.

    Raises:
        EngineRefused: it would be refused before anything is sent.
        MappingError: the arguments do not fit the tool's templates.
    """
    arguments: dict[str, Any] = dict(given)
    asked: list[str] = []  # the questions for a person
    for name in still_to_ask(tool, arguments, Dialogue()):
        content = answers.from_flags(PendingQuestion(key=name, name=name, schema=dict(tool.ask[name].form(name))))
        arguments.update(content)
        if not content:
            asked.append(name)
    scope = {"args": arguments, **LOCAL.scope, "task": {"id": NEW}}
    engine = config.engines[tool.engine]
    kept = fill_templates(tool, scope, LOCAL)
    start = Start(
        workflow=tool.workflow,
        arguments=kept.input,
        key=NEW,
        created=datetime.now(UTC),
        options=kept.options,
        context=kept.context,
    )
    sought = confirmation(tool, scope)
    sent: dict[str, Any] = {
        "tool": tool.name,
        "engine": tool.engine,
        "adapter": engine.adapter,
        "workflow": start.workflow,
        "arguments": start.arguments,
        "options": start.options,
        "asks": {name: tool.ask[name].params(name, scope) for name in asked},
        "confirms": None if sought is None else sought.request.params["message"],
        "gates": {name: asdict(gate) for name, gate in kept.gates.items()},
    }
    if tool.kind is Kind.WATCH:  # nothing is sent
        sent |= {"arguments": None, "watches": arguments[EXECUTION_ID]}
    else:
        async with engine.kind(engine.settings) as adapter:  # does not connect yet
            if isinstance(adapter.tooling, Previews):
                sent["request"] = adapter.tooling.preview(start)
    return {key: value for key, value in sent.items() if value not in ({}, None)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One of: a result, a JSON-RPC error, a cancelled task, a task that was only begun."""

    result: types.CallToolResult | None = None
    error: types.ErrorData | None = None
    cancelled: str | None = None
    begun: TaskState | None = None
    no_task: bool = False  # the result is that of a call without a task

    @property
    def handle(self) -> Mapping[str, Any] | None:  # Any: JSON
        """The `taskId` and `status` of a task that continues, which a client without tasks gets instead of a result."""
        found: Mapping[str, Any] = (self.result and self.no_task and self.result.structured_content) or {}
        goes_on = found.get("status") in ("working", "input_required") and {"taskId", "next"} <= found.keys()
        return found if goes_on else None

    def tell(self, task_id: str | None, *, as_json: bool) -> int:
        """Print the outcome, without control characters, and return the exit code."""
        failed = not self.begun and (self.result is None or bool(self.result.is_error))
        if as_json:
            text = json.dumps(self._as_json(task_id), indent=2, ensure_ascii=False)
        elif self.result:
            text = self._shown(self.result)
        elif self.begun:
            text = self.begun.task_id
        else:
            text = f"error {self.error.code}: {self.error.message}" if self.error else self.cancelled or ""
        typer.echo(harmless(text), err=failed and not as_json, color=True)  # color: strip nothing
        return int(failed)

    def _shown(self, result: types.CallToolResult) -> str:
        """Return structured content as JSON, or else all text and the URIs of other content; for an error both."""
        structured = result.structured_content
        if structured is not None and not result.is_error:
            return json.dumps(structured, indent=2, ensure_ascii=False)
        lines: list[str] = []
        for block in result.content:
            if isinstance(block, types.TextContent):
                lines.append(block.text)
            elif isinstance(block, types.ResourceLink):
                lines.append(f"{block.uri} ({block.name})")
            else:
                lines.append(f"({block.type}: use --json)")
        if structured is not None:
            error = error_in({"structuredContent": structured})
            facts = {name: each for name, each in (error or {}).items() if name != "message"}  # which is in the text
            lines += [f"{name}: {text}" for name, text in in_words(facts).items()]
            lines += [json.dumps(structured, ensure_ascii=False)] if error is None else []  # another server's format
        return "\n".join(lines)

    def _as_json(self, task_id: str | None) -> Mapping[str, Any]:  # Any: JSON
        shown: dict[str, Any] = {"taskId": task_id, "status": "completed" if self.result else "failed"}
        if self.begun:
            shown["status"] = self.begun.status
        if self.cancelled:
            shown |= {"status": "cancelled", "message": self.cancelled}
        if self.handle:
            shown |= {key: self.handle[key] for key in ("taskId", "status")}
        for name, found in {"result": self.result, "error": self.error}.items():
            if found:
                shown[name] = found.model_dump(by_alias=True, mode="json", exclude_none=True)
        return {key: value for key, value in shown.items() if value is not None}
