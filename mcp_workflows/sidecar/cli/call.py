"""The command `mcp-workflows call`: run a tool's workflow from the terminal, as a host would."""

from __future__ import annotations

import json
import logging
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast
from urllib.parse import urlsplit

import anyio
import mcp_types as types
import typer
from mcp.shared.exceptions import MCPError

from mcp_workflows.access import LOCAL, Principal, is_loopback
from mcp_workflows.adapter import Start
from mcp_workflows.client.connection import Connection, Era, connect
from mcp_workflows.client.http import known_http
from mcp_workflows.errors import NotLetIn, ServerUnreachable, TaskCancelled
from mcp_workflows.kit.tooling import Previews
from mcp_workflows.sidecar import DISTRIBUTION
from mcp_workflows.sidecar.app import DiscoveryMode, build, exporters_of
from mcp_workflows.sidecar.cli.app import app
from mcp_workflows.sidecar.cli.arguments import Schema, WrongUsage, describe, read_arguments, read_pair
from mcp_workflows.sidecar.cli.options import DEFAULT_CONFIG, ConfigOption, LogLevel, command_line, load, log
from mcp_workflows.sidecar.cli.progress import INTERRUPTED, Screen
from mcp_workflows.sidecar.cli.prompts import AnswerFlag, Answers, QuestionName
from mcp_workflows.sidecar.cli.result import Outcome
from mcp_workflows.sidecar.config.models import Config
from mcp_workflows.sidecar.operator import find_task
from mcp_workflows.tools.dialogue import Dialogue, confirmation, still_to_ask
from mcp_workflows.tools.json_schema import did_you_mean
from mcp_workflows.tools.prepare import fill_templates
from mcp_workflows.tools.tool import EXECUTION_ID, AnyTool, Kind
from mcp_workflows.wire.v2026_07_28 import MISSING_CAPABILITY

RECONNECT_SECONDS = 60.0  # the longest absence of a server while its task is followed
NEW = "0" * 40  # in a dry run: the id and the key that a real call would get

T = TypeVar("T", AnyTool, types.Tool)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """The options of one call."""

    tool: str | None
    words: Sequence[str]
    given: Mapping[str, Any]  # Any: JSON
    resume: str | None
    era: Era
    wait: bool
    key: str | None
    config: Path
    url: str | None
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None

    def resume_command(self, task_id: str) -> str:
        """Return the command that follows this task, at the same server and as the same kind of client."""
        words = ["call", "--resume", task_id, *([] if self.era is Era.TASKS else ["--era", self.era])]
        if not self.url:
            return command_line(*words, config=self.config)
        token = ["--token-file", self.token_file] if self.token_file else []
        return shlex.join([DISTRIBUTION, *words, "--url", self.url, *token])


@app.command()
def call(
    tool: Annotated[str | None, typer.Argument(metavar="TOOL", help="Left out with --resume.")] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Its arguments; KEY:=JSON for anything else.")
    ] = None,
    args_json: Annotated[
        typer.FileText | None,
        typer.Option("--args-json", metavar="FILE", help="Arguments from a JSON file; - is standard input."),
    ] = None,
    answer: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME.FIELD=VALUE", help="Answer a question; FIELD=VALUE answers any with that field."),
    ] = None,
    decline: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Decline a question, by its name or a field of it.")
    ] = None,
    era: Annotated[Era, typer.Option(help="The client to be; none: the newest, without tasks.")] = Era.TASKS,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be sent; start nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs: one JSON object.")] = False,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Print the task's id and leave.")] = False,
    resume: Annotated[
        str | None, typer.Option(metavar="ID", help="Come back to a task; the beginning of its id is enough.")
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="The same key and arguments start one workflow, not two.")
    ] = None,
    config: ConfigOption = DEFAULT_CONFIG,
    url: Annotated[str | None, typer.Option(metavar="URL", help="Call there, not what CONFIG says.")] = None,
    token_file: Annotated[
        typer.FileText | None,
        typer.Option(metavar="FILE", help="With --url: a bearer token from a file; - is standard input."),
    ] = None,
) -> None:
    """Call a tool and wait for its result: progress, questions and all; Ctrl-C leaves the workflow running.

    Exit code 0: it succeeded, 1: it failed or was cancelled, 2: wrong usage, 130: interrupted.
    """
    log(LogLevel.ERROR)
    logging.getLogger("mcp").setLevel(logging.CRITICAL)  # the screen reports the state of the connection
    screen = Screen()
    options: CallOptions | None = None
    try:
        options = CallOptions(
            tool=tool,
            words=arguments or [],
            given=_read_json(args_json),
            resume=resume,
            era=era,
            wait=not no_wait,
            key=idempotency_key,
            config=config,
            url=url,
            token=_read_token(token_file),
            token_file=token_file.name if token_file and token_file.name != "<stdin>" else None,
        )
        answers = Answers([_answer(word) for word in answer or []], decline or [], screen)
        _check_usage(options, dry_run=dry_run)
        loaded = None if url else load(config)
        if dry_run and loaded is not None:
            code = anyio.run(_dry_run, options, loaded, answers)
        else:
            code = anyio.run(_call, options, loaded, answers, screen, as_json)
    except WrongUsage as error:
        code = 2
        screen.note(str(error))
        if screen.task_id:
            screen.note(_left_behind(options, screen.task_id))
    except KeyboardInterrupt:
        screen.note(_left_behind(options, screen.task_id))
        code = INTERRUPTED
    raise typer.Exit(code)


def _answer(word: str) -> AnswerFlag:
    try:
        return AnswerFlag(read_pair(word))
    except WrongUsage as error:
        raise WrongUsage(f"--answer {error}") from None


# --- a dry run


async def _dry_run(options: CallOptions, config: Config, answers: Answers) -> int:
    """Print the request that would be sent and return the exit code."""
    tool = _named(options.tool or "", config.tools)
    answers.check(tool.asks)
    sent = await preview(config, tool, _arguments(options, tool.input, tool), answers)
    typer.echo("dry run: nothing was started; this would be sent", err=True)
    typer.echo(json.dumps(sent, indent=2, ensure_ascii=False, default=str))
    return 0


def _named(name: str, tools: Sequence[T]) -> T:
    by_name = {tool.name: tool for tool in tools}
    if name not in by_name:
        there = ", ".join(by_name) or "none"
        raise WrongUsage(f"there is no tool {name!r}{did_you_mean(name, by_name)} (there are: {there})")
    return by_name[name]


def _configured(config: Config | None, name: str) -> AnyTool | None:
    """Return the tool of this name in the configuration; None for a task tool, or one of another server."""
    return next((tool for tool in config.tools if tool.name == name), None) if config else None


def _arguments(options: CallOptions, schema: Schema, tool: AnyTool | None) -> dict[str, Any]:  # Any: JSON
    """Return the arguments, validated for a configured tool; those that the tool asks for may be missing."""
    arguments = read_arguments(map(read_pair, options.words), schema, options.given)
    arguments = tool.checker.normalize(arguments) if tool else arguments
    properties: Schema = schema.get("properties", {})
    brought = frozenset(name for question in tool.ask for name in tool.ask[question].answers(question)) if tool else ()
    missing = [name for name in schema.get("required", ()) if name not in arguments and name not in brought]
    if tool and missing:
        raise WrongUsage("missing: " + "; ".join(describe(name, properties.get(name, {})) for name in missing))
    if tool and (wrong := tool.complaints(arguments, to_be_asked=frozenset(brought))):
        raise WrongUsage("wrong arguments: " + "; ".join(wrong))
    return arguments


async def preview(
    config: Config, tool: AnyTool, given: Mapping[str, Any], answers: Answers
) -> dict[str, Any]:  # Any: JSON
    """Return the start that the adapter would get and, if the adapter can tell, the request that it would send.

    For a tool that watches, return the execution that it would adopt.

    Raises:
        EngineRefused: it would be refused before anything is sent.
        MappingError: the arguments do not fit the tool's templates.
    """
    asked, arguments = _answered(tool, given, answers)
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
    if tool.kind is Kind.WATCH:  # it sends nothing
        sent |= {"arguments": None, "watches": arguments[EXECUTION_ID]}
    else:
        async with engine.kind(engine.settings) as adapter:  # this does not connect yet
            if isinstance(adapter.tooling, Previews):
                sent["request"] = adapter.tooling.preview(start)
    return {key: value for key, value in sent.items() if value not in ({}, None)}


def _answered(tool: AnyTool, given: Mapping[str, Any], answers: Answers) -> tuple[tuple[str, ...], Mapping[str, Any]]:
    """Return the questions that a person would be asked, and the arguments with the answers of flags."""
    arguments, dialogue = dict(given), Dialogue()
    asked: list[str] = []
    for name in still_to_ask(tool, arguments, dialogue):
        content = answers.from_flags(QuestionName(name, name), tool.ask[name].form(name))
        arguments.update(content)
        if not content:
            asked.append(name)
    return tuple(asked), arguments


# --- a call


async def _call(options: CallOptions, config: Config | None, answers: Answers, screen: Screen, as_json: bool) -> int:
    """Make the call, print its outcome and return the exit code; without a configuration the server is at `url`."""
    outcome = await _patient_outcome(options, config, answers, screen)
    if outcome.error and outcome.error.code == MISSING_CAPABILITY and options.era is not Era.TASKS:
        screen.note(f"a client of --era {options.era} cannot have it: leave that out")
    if outcome.error and options.resume and options.url and not screen.followed:
        screen.note("with --url, --resume takes the whole id of a task: mcp-workflows tasks show ID prints it")
    if outcome.handle:
        screen.note(_left_behind(replace(options, era=Era.TASKS), outcome.handle["taskId"]))
    if outcome.error and screen.followed:
        screen.note(_left_behind(options, screen.task_id))
    for flag in answers.unused:
        screen.note(
            f"note: nothing asked for {flag}" + ("" if options.wait else " (--no-wait leaves before a task asks)")
        )
    return outcome.tell(screen.task_id, as_json=as_json)


async def _patient_outcome(options: CallOptions, config: Config | None, answers: Answers, screen: Screen) -> Outcome:
    """Return the outcome over as many connections as it takes: tasks survive a restart of the server.

    Raises:
        NotLetIn: the server requires a token, or another one.
        ServerUnreachable: it does not answer, or stays away.
    """
    lost_at = 0.0
    while True:
        try:
            return await _connected_outcome(options, config, answers, screen)
        except NotLetIn as error:
            raise NotLetIn(f"{options.url}: {error}{_with_another_token(options, screen)}") from None
        except ServerUnreachable as error:
            if screen.task_id is None:
                raise ServerUnreachable(f"{options.url}: {error}; {_is_it_running(options)}") from None
            if screen.heard_at >= lost_at:  # the server has answered meanwhile
                lost_at = anyio.current_time()
            if anyio.current_time() > lost_at + RECONNECT_SECONDS:
                left = _left_behind(options, screen.task_id)
                raise ServerUnreachable(f"{options.url}: {error}; {left}") from None
        screen.lost()
        options = replace(options, resume=screen.task_id)
        await anyio.sleep(1)


def _with_another_token(options: CallOptions, screen: Screen) -> str:
    if options.token is None:
        return "; give one with --token-file"
    return f"; {_left_behind(options, screen.task_id)}" if screen.task_id else ""


async def _connected_outcome(options: CallOptions, config: Config | None, answers: Answers, screen: Screen) -> Outcome:
    local = LOCAL
    if config and options.resume:
        options, local = await _resumed(options, config)
    server: Any  # a server in this process, or a transport: see `connect`
    if config:
        may_be_marked = options.tool is not None and _configured(config, options.tool) is None
        discovery_mode = DiscoveryMode.ONCE if may_be_marked else DiscoveryMode.NEVER
        exporters = exporters_of(config, printing=True)
        server = build(config, local=local, discovery_mode=discovery_mode, exporters=exporters).server
    else:
        server = known_http(options.url or "", options.token)
    outcome = Outcome()
    async with connect(server, era=options.era, on_status=screen.state, elicit=answers) as connection:
        try:
            with screen.running():
                outcome = await _outcome(options, connection, config, answers, screen)
        except (MCPError, TaskCancelled) as error:
            outcome = Outcome.of(error)
    return outcome


async def _resumed(options: CallOptions, config: Config) -> tuple[CallOptions, Principal]:
    """Return the options with the whole task id, and the owner, for whom a reader of the store may act.

    Raises:
        OperatorError: see `find_task`.
    """
    async with config.store.open() as store:
        task = await find_task(store, options.resume or "")
    return replace(options, resume=task.id), Principal(id=task.owner)


async def _outcome(
    options: CallOptions, connection: Connection, config: Config | None, answers: Answers, screen: Screen
) -> Outcome:
    if options.resume:
        screen.task_id = options.resume
        return Outcome(result=await connection.result(options.resume))
    if options.era is Era.TASKS and not connection.offers_tasks:
        spoken = connection.client.protocol_version
        screen.note(f"the server offers no tasks (it speaks {spoken}): waiting for the plain result")
    name = options.tool or ""
    tool = _named(name, await connection.tools())
    ours = _configured(config, name)
    if ours:
        answers.check(ours.asks)
    arguments = _arguments(options, tool.input_schema, ours)
    begun = await connection.start(tool, arguments, key=options.key, progress=screen.progress)
    if isinstance(begun, types.CallToolResult):
        return Outcome(result=begun, no_task=True)
    if options.wait:
        return Outcome(result=await connection.result(begun))
    if sys.stderr.isatty():
        screen.note(_left_behind(options, begun.state.task_id))
    return Outcome(begun=begun.state)


# --- the command line


def _read_json(file: typer.FileText | None) -> Mapping[str, Any]:  # Any: JSON
    """Return the object of `--args-json`.

    Raises:
        WrongUsage: it is no JSON object.
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
    """Return the content of `--token-file`, without the blanks around it.

    Raises:
        WrongUsage: it is no token that can be sent.
    """
    if file is None:
        return None
    token = file.read().strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise WrongUsage("--token-file: there must be one token in it, and nothing else")
    return token


def _check_usage(options: CallOptions, *, dry_run: bool) -> None:
    """Raise `WrongUsage` if the options do not go together."""
    problems = {
        "which tool? or --resume ID": not options.tool and not options.resume,
        "--resume ID comes without a tool and arguments": bool(options.resume and (options.tool or options.given)),
        f"--resume needs tasks: leave out --era {options.era}": bool(options.resume) and options.era is Era.NONE,
        f"--no-wait needs tasks: leave out --era {options.era}": not options.wait and options.era is Era.NONE,
        "--dry-run needs the configuration: leave out --url": dry_run and options.url is not None,
        "--token-file is for --url: here you are the local user": options.token is not None and options.url is None,
        "--dry-run starts nothing, so there is nothing to resume": dry_run and options.resume is not None,
    }
    for problem, there in problems.items():
        if there:
            raise WrongUsage(problem)


def _is_it_running(options: CallOptions) -> str:
    """Return the first thing to look at if nobody answers at the URL."""
    place = urlsplit(options.url or "")
    asked = f"is `{DISTRIBUTION} serve` running there?"
    if not is_loopback(place.hostname or "") or place.port is None:
        return asked
    start = [DISTRIBUTION, "serve", str(options.config), "--http", place.netloc.rpartition("@")[2]]
    return f"{asked} Start it: {shlex.join(start)}"


def _left_behind(options: CallOptions | None, task_id: str | None) -> str:
    """Return the command to come back to a task that goes on."""
    if task_id is None or options is None:
        return "interrupted; what was started goes on, but no task is known to come back to"
    return f"the task goes on; come back with: {options.resume_command(task_id)}"
