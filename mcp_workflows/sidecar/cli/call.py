"""mcp-workflows call: a tool's workflow from the terminal, as a host would run it."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import anyio
import mcp_types as types
import typer
from mcp.shared.exceptions import MCPError

from mcp_workflows.access import LOCAL, Principal
from mcp_workflows.client.connection import Begun, Connection, Era, connect
from mcp_workflows.client.http import known_http
from mcp_workflows.errors import NotLetIn, ServerUnreachable, TaskCancelled
from mcp_workflows.sidecar.app import Looking, Sidecar, build, exporting_of
from mcp_workflows.sidecar.cli.app import app
from mcp_workflows.sidecar.cli.arguments import Schema, WrongUsage, describe, read_arguments, read_pair
from mcp_workflows.sidecar.cli.config_file import DEFAULT_CONFIG, ConfigOption, load
from mcp_workflows.sidecar.cli.dry_run import preview
from mcp_workflows.sidecar.cli.log import LogLevel, log
from mcp_workflows.sidecar.cli.options import Order, check_usage, is_it_running, left_behind, read_json, read_token
from mcp_workflows.sidecar.cli.progress import INTERRUPTED, Screen
from mcp_workflows.sidecar.cli.prompts import Answer, Answers
from mcp_workflows.sidecar.cli.result import Outcome
from mcp_workflows.sidecar.config.load import Config
from mcp_workflows.sidecar.config.problems import did_you_mean
from mcp_workflows.sidecar.operator import named_task
from mcp_workflows.tools.tool import Tool
from mcp_workflows.wire.v2026_07_28 import MISSING_CAPABILITY

RECONNECT_SECONDS = 60.0  # how long a server may be away while its task is followed


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
    logging.getLogger("mcp").setLevel(logging.CRITICAL)  # whatever happens to the connection, the screen tells it
    screen = Screen()
    order: Order | None = None
    try:
        order = Order(
            tool=tool,
            words=arguments or [],
            given=read_json(args_json),
            resume=resume,
            era=era,
            wait=not no_wait,
            key=idempotency_key,
            config=config,
            url=url,
            token=read_token(token_file),
            token_file=token_file.name if token_file and token_file.name != "<stdin>" else None,
        )
        answers = Answers([_answer(word) for word in answer or []], decline or [], screen)
        check_usage(order, dry_run=dry_run)
        code = anyio.run(_dry_run, order, answers) if dry_run else anyio.run(_call, order, answers, screen, as_json)
    except WrongUsage as error:
        code = _explain(error, screen, order)
    except KeyboardInterrupt:
        screen.note(left_behind(order, screen.task_id))
        code = INTERRUPTED
    raise typer.Exit(code)


def _answer(word: str) -> Answer:
    try:
        return Answer(read_pair(word))
    except WrongUsage as error:
        raise WrongUsage(f"--answer {error}") from None


def _explain(error: WrongUsage, screen: Screen, order: Order | None) -> int:
    screen.note(str(error))
    if screen.task_id:
        screen.note(left_behind(order, screen.task_id))
    return 2


# --- a dry run


async def _dry_run(order: Order, answers: Answers) -> int:
    """The exit code, after it was printed."""
    config = load(order.config)
    tool = _configured(config, order.tool or "")
    answers.check(tool.asks)
    told = await preview(config, tool, _arguments(order, tool.input, tool), answers)
    typer.echo("dry run: nothing was started; this would be sent", err=True)
    typer.echo(json.dumps(told, indent=2, ensure_ascii=False, default=str))
    return 0


def _configured(config: Config, name: str) -> Tool:
    tools = {tool.name: tool for tool in config.tools}
    if name not in tools:
        raise WrongUsage(_no_tool(name, list(tools)))
    return tools[name]


def _ours(config: Config | None, name: str) -> Tool | None:
    """The tool as it is configured; None: it is another server's, or a companion tool."""
    return next((tool for tool in config.tools if tool.name == name), None) if config else None


def _no_tool(name: str, there: Sequence[str]) -> str:
    return f"there is no tool {name!r}{did_you_mean(name, there)} (there are: {', '.join(there) or 'none'})"


def _arguments(order: Order, schema: Schema, tool: Tool | None) -> dict[str, Any]:  # Any: JSON
    """The arguments, right by the schema; what a tool of ours would ask for may be missing, another server must say."""
    arguments = read_arguments(map(read_pair, order.words), schema, order.given)
    properties: Schema = schema.get("properties", {})
    brought = frozenset(name for question in tool.ask for name in tool.ask[question].answers(question)) if tool else ()
    missing = [name for name in schema.get("required", ()) if name not in arguments and name not in brought]
    if tool and missing:
        raise WrongUsage("missing: " + "; ".join(describe(name, properties.get(name, {})) for name in missing))
    if tool and (wrong := tool.complaints(arguments, to_be_asked=frozenset(brought))):
        raise WrongUsage("wrong arguments: " + "; ".join(wrong))
    return arguments


# --- a call


async def _call(order: Order, answers: Answers, screen: Screen, as_json: bool) -> int:
    """The exit code, after everything was told."""
    outcome = await _patient_outcome(order, answers, screen)
    if outcome.error and outcome.error.code == MISSING_CAPABILITY and order.era is not Era.TASKS:
        screen.note(f"a client of --era {order.era} cannot have it: leave that out")
    if outcome.error and order.resume and order.url and not screen.followed:
        screen.note("with --url, --resume takes the whole id of a task: mcp-workflows tasks show ID prints it")
    if outcome.handle:
        screen.note(left_behind(replace(order, era=Era.TASKS), outcome.handle["taskId"]))
    if outcome.error and screen.followed:
        screen.note(left_behind(order, screen.task_id))
    for flag in answers.unused:
        screen.note(
            f"note: nothing asked for {flag}" + ("" if order.wait else " (--no-wait leaves before a task asks)")
        )
    return outcome.tell(screen.task_id, as_json=as_json)


async def _patient_outcome(order: Order, answers: Answers, screen: Screen) -> Outcome:
    """The outcome, over as many connections as it takes: a server that is started again has its tasks still.

    Raises:
        NotLetIn: it wants a token, or another one.
        ServerUnreachable: it does not answer, or stays away.
    """
    lost_at = 0.0
    while True:
        try:
            return await _connected_outcome(order, answers, screen)
        except NotLetIn as error:
            raise NotLetIn(f"{order.url}: {error}{_with_another_token(order, screen)}") from None
        except ServerUnreachable as error:
            if screen.task_id is None:
                raise ServerUnreachable(f"{order.url}: {error}; {is_it_running(order)}") from None
            if screen.heard_at >= lost_at:  # it was there again in between
                lost_at = anyio.current_time()
            if anyio.current_time() > lost_at + RECONNECT_SECONDS:
                left = left_behind(order, screen.task_id)
                raise ServerUnreachable(f"{order.url}: {error}; {left}") from None
        screen.lost()
        order = replace(order, resume=screen.task_id)
        await anyio.sleep(1)


def _with_another_token(order: Order, screen: Screen) -> str:
    if order.token is None:
        return "; give one with --token-file"
    return f"; {left_behind(order, screen.task_id)}" if screen.task_id else ""


async def _connected_outcome(order: Order, answers: Answers, screen: Screen) -> Outcome:
    config = None if order.url else load(order.config)
    local = LOCAL
    if config and order.resume:
        order, local = await _resumed(order, config)
    server = _sidecar(order, config, local).server if config else known_http(order.url or "", order.token)
    outcome = Outcome()
    async with connect(server, era=order.era, on_status=screen.state, elicit=answers) as connection:
        try:
            with screen.running():
                outcome = await _outcome(order, connection, config, answers, screen)
        except (MCPError, TaskCancelled) as error:
            outcome = Outcome.of(error)
    return outcome


def _sidecar(order: Order, config: Config, local: Principal) -> Sidecar:
    """One of our own; a tool that is not in the file may be one that is marked on its engine."""
    unknown = order.tool is not None and _ours(config, order.tool) is None
    looking = Looking.ONCE if unknown else Looking.NEVER
    exporting = exporting_of(config, printing=True)
    return build(config, local=local, looking=looking, exporting=exporting)


async def _resumed(order: Order, config: Config) -> tuple[Order, Principal]:
    """The order with the whole id of its task, and the task's owner: whoever can read the store may act for them.

    Raises:
        OperatorError: see `named_task`.
    """
    async with config.store.open() as store:
        task = await named_task(store, order.resume or "")
    return replace(order, resume=task.id), Principal(id=task.owner)


async def _outcome(
    order: Order, connection: Connection, config: Config | None, answers: Answers, screen: Screen
) -> Outcome:
    if order.resume:
        screen.task_id = order.resume
        return Outcome(result=await connection.result(order.resume))
    _say_what_it_takes(order, connection, screen)
    name = order.tool or ""
    tool = await _listed(connection, name)
    ours = _ours(config, name)
    if ours:
        answers.check(ours.asks)
    arguments = _arguments(order, tool.input_schema, ours)
    begun = await connection.start(tool, arguments, key=order.key, progress=screen.progress)
    if isinstance(begun, types.CallToolResult):
        return Outcome(result=begun, no_task=True)
    if not order.wait:
        return _on_its_way(order, begun, screen)
    return Outcome(result=await connection.result(begun))


def _say_what_it_takes(order: Order, connection: Connection, screen: Screen) -> None:
    if order.era is Era.TASKS and not connection.offers_tasks:
        spoken = connection.client.protocol_version
        screen.note(f"the server offers no tasks (it speaks {spoken}): waiting for the plain result")


async def _listed(connection: Connection, name: str) -> types.Tool:
    tools = {tool.name: tool for tool in await connection.tools()}
    if name not in tools:
        raise WrongUsage(_no_tool(name, list(tools)))
    return tools[name]


def _on_its_way(order: Order, begun: Begun, screen: Screen) -> Outcome:
    if sys.stderr.isatty():
        screen.note(left_behind(order, begun.state.task_id))
    return Outcome(begun=begun.state)
