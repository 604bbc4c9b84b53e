"""The command `mcp-workflows tasks`: the operator's commands on tasks of any owner."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import anyio
import typer
from rich.console import Console

from mcp_workflows.access import ANONYMOUS, LOCAL, Principal
from mcp_workflows.adapter import JSON, Terminates
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import OperatorError
from mcp_workflows.kit.tooling import Explanation
from mcp_workflows.sidecar import DISTRIBUTION
from mcp_workflows.sidecar.cli.app import COMMANDS, WrongUsage, app, say
from mcp_workflows.sidecar.cli.arguments import named, read_pair
from mcp_workflows.sidecar.cli.format import (
    STATUSES,
    TaskStatus,
    facts_of_failure,
    question_or_message,
    render_facts,
    render_table,
    render_task,
    status_of,
    summary_json,
    task_json,
)
from mcp_workflows.sidecar.cli.options import (
    DEFAULT_CONFIG,
    AsJson,
    ConfigOption,
    LogLevel,
    command_line,
    load_shared,
    log,
    names_in,
)
from mcp_workflows.sidecar.cli.progress import INTERRUPTED, Screen
from mcp_workflows.sidecar.cli.prompts import Answers, PendingQuestion, Response, named_question, open_questions
from mcp_workflows.sidecar.config.models import Config
from mcp_workflows.sidecar.operator import Operator
from mcp_workflows.sidecar.telemetry.exporters import exporters_of
from mcp_workflows.store.key_value import notes_in
from mcp_workflows.store.protocol import TaskFilter
from mcp_workflows.tasks.executions import ObservedTask
from mcp_workflows.units import parse_duration, utc_now

T = TypeVar("T")

ENGINE_TIMEOUT = 5.0  # seconds for one call to an engine, as a person waits
_ANSWERED = {"accept": "answered", "decline": "declined", "cancel": "put aside"}
ENDED = frozenset({TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED})

tasks = typer.Typer(help=COMMANDS["tasks"][1], no_args_is_help=True)
app.add_typer(tasks, name="tasks")

TaskId = Annotated[str, typer.Argument(metavar="ID", help="The task's id, or a unique beginning of it.")]


@tasks.command("list")
def list_tasks(
    tool: Annotated[
        str | None,
        typer.Option(metavar="TOOL", help="Only tasks of this tool.", autocompletion=names_in("tools")),
    ] = None,
    owner: Annotated[str | None, typer.Option(metavar="OWNER", help="Only tasks of this principal id.")] = None,
    older: Annotated[
        timedelta | None,
        typer.Option(parser=parse_duration, metavar="DURATION", help="Only tasks older than this, such as 2d."),
    ] = None,
    status: Annotated[list[TaskStatus] | None, typer.Option(help="Only tasks in this status; can be repeated.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also tasks that have ended.")] = False,
    limit: Annotated[int, typer.Option(metavar="COUNT", min=1, max=10_000, help="The most tasks to list.")] = 50,
    wide: Annotated[bool, typer.Option("--wide", help="Do not cut lines to the terminal's width.")] = False,
    as_json: AsJson = False,
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """List the tasks that have not ended, newest first."""
    states = frozenset(status or ())
    where = TaskFilter(
        tool=tool,
        owner=owner,
        created_before=utc_now() - older if older else None,
        live_only=not (everything or states & ENDED),
    )
    statuses = frozenset(STATUSES[state] for state in states)
    observed = _run(config, lambda operator, _: operator.tasks(where, statuses, limit))
    if as_json:
        typer.echo(json.dumps([summary_json(each) for each in observed], indent=2))
    elif observed:
        typer.echo(render_table(observed, None if wide or not sys.stdout.isatty() else Console().width))
    else:
        typer.echo("no tasks under way; for ended tasks add --all" if where.live_only else "no tasks")
    for trouble in dict.fromkeys(each.warning for each in observed if each.warning):
        say(f"as last known: {trouble}", err=True)


@tasks.command()
def show(task_id: TaskId, as_json: AsJson = False, config: ConfigOption = DEFAULT_CONFIG) -> None:
    """Show one task, with its result."""
    observed = _run(config, lambda operator, _: operator.read(task_id))
    typer.echo(json.dumps(task_json(observed), indent=2) if as_json else render_task(observed))
    _say_trouble(observed)


@tasks.command()
def why(task_id: TaskId, as_json: AsJson = False, config: ConfigOption = DEFAULT_CONFIG) -> None:
    """Explain why a task is still working, what to do, and why each gate of its tool is closed."""

    async def do(operator: Operator, loaded: Config) -> tuple[ObservedTask, Explanation, Sequence[str]]:
        observed, found = await operator.why(task_id)
        return observed, found, _commands(observed, loaded, config)

    observed, found, commands = _run(config, do)
    facts = {**found.facts, **facts_of_failure(observed.task)}
    if as_json:
        gates = {name: {"state": gate.state, "why": gate.why} for name, gate in found.gates.items()}
        explained = {"reason": found.reason, "advice": found.advice, "commands": commands, "gates": gates}
        typer.echo(json.dumps({**summary_json(observed), **explained, "facts": facts}, indent=2))
    else:
        advice = {"what to do": found.advice} if found.advice else {}
        many = len(commands) > 1
        advice |= {f"command {number}" if many else "command": each for number, each in enumerate(commands, 1)}
        task = {"task": f"{observed.task.id} ({observed.task.tool})"}
        closed = {f"gate {name}": f"{gate.state}: {gate.why}" for name, gate in found.gates.items()}
        typer.echo(render_facts({"why": found.reason, **advice, **task, **closed, **facts}))
    if observed.warning != found.reason:
        _say_trouble(observed)


@tasks.command()
def answer(
    task_id: TaskId,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME.FIELD=VALUE",
            help="The answer; NAME.FIELD:=JSON for values that are not text. FIELD=VALUE is enough if one question is "
            "open. NAME alone names the question to ask you here, or to decline.",
        ),
    ] = None,
    decline: Annotated[bool, typer.Option("--decline", help="Decline the question.")] = False,
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Answer an open question of a task, with the values given or at a prompt."""
    screen = Screen()
    values = [word for word in words or () if "=" in word]
    if decline and values:
        raise WrongUsage("--decline takes no values: give the question's name alone")

    async def do(operator: Operator, _: Config) -> tuple[PendingQuestion, Response, ObservedTask]:
        observed = await operator.find(task_id)
        if not (questions := open_questions(observed.task)):
            raise OperatorError(f"{observed.task.id}: no question is open; it is {_now(observed)}")

        def hint(question: PendingQuestion, _: Sequence[str] = ()) -> str:
            refusal = command_line("tasks", "answer", observed.task.id, question.label, "--decline", config=config)
            answer = answer_command(observed.task.id, question, config)
            return f"answer it with: {answer}\nor decline it with: {refusal}"

        question = named_question(questions, words or (), lambda each: answer_command(observed.task.id, each, config))
        answers = Answers([read_pair(word) for word in values], [question.label] if decline else [], screen, hint)
        given = await answers.answer(question)
        return question, given, await operator.answer(observed.task.id, str(question.key), dict(given.sent))

    try:
        question, given, observed = _run(config, do)
    except KeyboardInterrupt:
        screen.note("interrupted: nothing was answered")
        raise typer.Exit(INTERRUPTED) from None
    if question.key in observed.task.seen.requests:
        say(f"{observed.task.id}: the question stays open ({given.action})")
    else:
        say(f"{observed.task.id}: {_ANSWERED[given.action]}; it is {_now(observed)}")
    _say_trouble(observed)


@tasks.command()
def cancel(
    task_id: TaskId,
    terminate: Annotated[bool, typer.Option("--terminate", help="End it at once; it cannot clean up.")] = False,
    reason: Annotated[
        str | None, typer.Option(metavar="REASON", help="The reason, which readers of the task see.")
    ] = None,
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Cancel a task: ask its workflow to stop, or terminate it."""
    if reason is not None and not terminate:
        raise typer.BadParameter("--reason needs --terminate: a request to cancel carries no reason")
    if terminate:
        why_so = reason or "terminated by the operator, mcp-workflows tasks cancel"
        observed = _run(config, lambda operator, _: operator.terminate(task_id, why_so))
    else:
        observed = _run(config, lambda operator, _: operator.cancel(task_id))
    if observed.warning:
        say(f"{observed.task.id}: recorded; the next poll delivers it: {observed.warning}", err=True)
        raise typer.Exit(1)
    say(f"{observed.task.id}: {_outcome(observed, terminate=terminate)}")


@tasks.command()
def track(
    tool: Annotated[
        str,
        typer.Argument(metavar="TOOL", help="The tool that the task belongs to.", autocompletion=names_in("tools")),
    ],
    execution_id: Annotated[str, typer.Argument(metavar="EXECUTION_ID", help="The id that the engine's own UI shows.")],
    owner: Annotated[
        str | None,
        typer.Option(
            metavar="OWNER",
            help=f"The owner: a principal's id. Default: {ANONYMOUS.id}, or {LOCAL.id} if the server has single_user; "
            f"callers over stdio are {LOCAL.id} too.",
        ),
    ] = None,
    args: Annotated[
        str | None, typer.Option("--args", metavar="JSON", help="The tool's arguments, for templates of its gates.")
    ] = None,
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Create a task for an execution that was started elsewhere, and print its id."""
    if owner == "":
        raise typer.BadParameter("--owner is empty; leave it out for a server without authentication")
    try:
        arguments: Any = json.loads(args or "{}")  # any JSON value
    except ValueError as error:
        raise typer.BadParameter(f"--args is not JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise typer.BadParameter('--args must be a JSON object: {"order_id": "A1"}')
    known = cast("Mapping[str, JSON]", arguments)

    def do(operator: Operator, config: Config) -> Awaitable[ObservedTask]:
        principal = Principal(id=owner or (LOCAL if config.server.single_user else ANONYMOUS).id)
        return operator.adopt(named(tool, config.tools), execution_id, principal, known, config.store.retention)

    observed = _run(config, do)
    typer.echo(observed.task.id)
    _say_trouble(observed)


def _run(config: Path, do: Callable[[Operator, Config], Awaitable[T]]) -> T:
    """Run a function as the operator of a configuration."""
    log(LogLevel.ERROR)
    loaded = load_shared(config)
    exporters = exporters_of(loaded, printing=True)

    async def run() -> T:
        adapters = {name: engine.kind(engine.settings) for name, engine in loaded.engines.items()}
        async with (
            exporters,
            loaded.store.open() as store,
            Engines(adapters, call_timeout=ENGINE_TIMEOUT, notes=notes_in(store)) as engines,
        ):
            operator = Operator(store=store, engines=engines, tools=loaded.tools, audit=exporters.audit)
            return await do(operator, loaded)

    return anyio.run(run)


def answer_command(task_id: str, question: PendingQuestion, config: Path) -> str:
    """Return the command that answers a question, with VALUE for each required value."""
    pairs = [f"{path}=VALUE" for path in question.paths()]
    return command_line("tasks", "answer", task_id, *(pairs or [question.label]), config=config)


def _commands(observed: ObservedTask, config: Config, file: Path) -> Sequence[str]:
    """Return the commands to run next, ready to paste; none if this program cannot help."""
    task = observed.task
    if task.ended:
        return []
    if observed.warning:
        return [] if task.handle is None else [shlex.join([DISTRIBUTION, "check", str(file)])]
    if questions := open_questions(task):
        return [answer_command(task.id, question, file) for question in questions]
    engine = config.engines.get(task.engine)
    if (task.cancel_delivered or task.execution.cancel_requested) and engine and isinstance(engine.kind, Terminates):
        return [command_line("tasks", "cancel", task.id, "--terminate", config=file)]
    return []


def _outcome(observed: ObservedTask, *, terminate: bool) -> str:
    task = observed.task
    if task.ended:
        return _now(observed)
    if terminate:
        return "terminated"
    announced = None if task.grace is None else task.seen.message
    return announced or "asked to cancel; it has not ended yet"


def _now(observed: ObservedTask) -> str:
    """Return the task's status and message, to end a sentence."""
    state, said = status_of(observed.task).value, question_or_message(observed.task)
    return state if said in ("", state) else f"{state}, {said}"


def _say_trouble(observed: ObservedTask) -> None:
    if observed.warning:
        say(f"as last known: {observed.warning}", err=True)
