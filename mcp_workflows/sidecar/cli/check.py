"""The command `mcp-workflows check`: of a configuration, of an engine's promises, of gates on a recorded history."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import anyio
import typer
from pydantic import BaseModel, ValidationError
from rich.console import Console

from mcp_workflows.access import ANONYMOUS, LOCAL
from mcp_workflows.adapter import Execution, Fixtures, Gate, InputRequest, Role
from mcp_workflows.errors import ConfigError
from mcp_workflows.kit.tooling import HasFixtures, Replayed, Replays
from mcp_workflows.sidecar import DISTRIBUTION
from mcp_workflows.sidecar.checks import check as check_all
from mcp_workflows.sidecar.cli.app import WrongUsage, app, say
from mcp_workflows.sidecar.cli.arguments import named, read_arguments, read_pair
from mcp_workflows.sidecar.cli.options import (
    AsJson,
    ConfigArgument,
    ConfigInstead,
    LogLevel,
    Yes,
    either,
    existing,
    load,
    log,
    names_in,
)
from mcp_workflows.sidecar.cli.progress import INTERRUPTED
from mcp_workflows.sidecar.config.models import Config, Engine
from mcp_workflows.sidecar.config.problems import no_engine
from mcp_workflows.sidecar.live_checks import LiveCheck, Promise, Verdict
from mcp_workflows.testing.laws import UNKNOWN
from mcp_workflows.tools.prepare import fill_templates
from mcp_workflows.tools.questions import ELICIT, NAME_META
from mcp_workflows.tools.tool import AnyTool, Kind
from mcp_workflows.wire.params import STATUS, progress_text

_UNBROKEN: Final = 10_000  # columns: lines that do not go to a terminal are never broken
_WIDTH: Final = 9  # of the longest verdict
_ORIGIN: Final = (
    "This check has run on local engines only, never in a cloud. If something in your account is broken or odd, please "
    "open an issue."
)
_NO_HANDLE: Final = "your own tools have no handle of a missing execution; `mcp-workflows check` polls one"
_TOOL: Final = "'TOOL [KEY=VALUE ...]'"
_LIVE: Final = "With --live"
_HISTORY: Final = "With --history"


def _part(about: str) -> Any:  # Any: Typer's declaration of an option
    return typer.Option(metavar=_TOOL, help=f"A tool whose workflow {about}.", rich_help_panel=_LIVE)


@app.command()
def check(
    config: ConfigArgument = None,
    option: ConfigInstead = None,
    store: Annotated[
        bool, typer.Option("--store", help="Also count live tasks whose tool or engine was removed.")
    ] = False,
    accept: Annotated[
        bool, typer.Option("--accept", help="Accept changed tools of upstream servers: offer them as they are now.")
    ] = False,
    as_json: AsJson = False,
    live: Annotated[
        str | None,
        typer.Option(
            metavar="ENGINE",
            help="Test which promises hold on this engine: start and end executions there.",
            rich_help_panel=_LIVE,
            autocompletion=names_in("engines"),
        ),
    ] = None,
    finishes: Annotated[str | None, _part("succeeds soon, and its arguments")] = None,
    other: Annotated[str | None, _part("is that of --finishes, with other arguments: they must be refused")] = None,
    fails: Annotated[str | None, _part("fails soon")] = None,
    endless: Annotated[str | None, _part("runs until it is cancelled")] = None,
    asks: Annotated[str | None, _part("asks one question")] = None,
    answer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=VALUE", help="The answer to --asks; FIELD:=JSON if it is not text.", rich_help_panel=_LIVE
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A setting the adapter needs to create workflows (a role).",
            rich_help_panel=_LIVE,
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=1, help="The longest time for an execution to end.", rich_help_panel=_LIVE),
    ] = 60,
    yes: Yes = False,
    history: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Print what a client would have seen of an execution, from its exported history (JSON); needs no "
            "engine.",
            rich_help_panel=_HISTORY,
        ),
    ] = None,
    tool: Annotated[
        str | None,
        typer.Option(
            metavar=_TOOL,
            help="The tool with its gates, and the call's arguments. Without arguments, placeholders stay unfilled.",
            rich_help_panel=_HISTORY,
            autocompletion=names_in("tools"),
        ),
    ] = None,
) -> None:
    """Check the configuration, store, engines and workflows; or one engine, or gates on a history.

    Exit code 0: no problem; 1: a problem, a broken promise, or nothing was tried; 2: wrong usage; 130: interrupted.
    """
    parts = {"finishes": finishes, "other": other, "fails": fails, "endless": endless, "asks": asks}
    if live is None and (any(parts.values()) or answer or settings):
        raise WrongUsage("these options are for --live ENGINE")
    if (history is None) != (tool is None):
        raise WrongUsage(f"--history FILE and --tool {_TOOL} go together")
    if live is not None and history is not None:
        raise WrongUsage("--live and --history are two checks: choose one")
    log(LogLevel.WARNING if live is None else LogLevel.ERROR)
    path = either(config, option)
    if live is not None:
        roles = parts if any(parts.values()) else None
        run = _live_check(load(path), live, roles, answer or [], settings or [], timeout)
        _consent(run, yes=yes)
        raise typer.Exit(_run(run, as_json=as_json))
    if history is not None and tool is not None:
        _replay(load(path), tool, history, as_json=as_json)
        return
    try:
        path = existing(path)
        report = anyio.run(partial(check_all, load(path), tasks=store, accept=accept))
    except ConfigError as error:
        if not as_json:
            raise
        typer.echo(json.dumps({"ok": False, "errors": str(error).splitlines()}, indent=2))
        raise typer.Exit(1) from None
    if as_json:
        typer.echo(json.dumps(report.as_json(), indent=2))
    else:
        console = Console()
        (console if console.is_terminal else Console(width=_UNBROKEN)).print(report.as_table())
        typer.echo(f"\n{path}: {report.summary}")
    raise typer.Exit(1 if report.problems else 0)


def _read_call(tools: Sequence[AnyTool], written: str, option: str) -> tuple[AnyTool, dict[str, Any] | None]:
    """Return the tool of `TOOL [KEY=VALUE ...]` and its arguments; None without arguments."""
    try:
        name, *words = shlex.split(written)
    except ValueError as error:
        raise WrongUsage(f"{option} {written}: {error}") from None
    tool = named(name, tools)
    return tool, read_arguments(map(read_pair, words), tool.input, {}) if words else None


# --- the promises of an engine


def _live_check(
    config: Config,
    name: str,
    parts: Mapping[str, str | None] | None,
    answer: Sequence[str],
    settings: Sequence[str],
    timeout: float,
) -> LiveCheck:
    """Return the run: with the user's tools, or with the adapter's own workflows."""
    if name not in config.engines:
        raise ConfigError(no_engine(name, config.engines))
    engine, lines = config.engines[name], _Lines()
    if parts is not None:
        roles = _roles(config, engine, parts, answer)
        return LiveCheck(engine=engine, roles=roles, settings=None, timeout=timeout, report=lines)
    tooling = engine.kind.tooling
    if not isinstance(tooling, HasFixtures):
        raise ConfigError(
            f"the adapter {engine.adapter!r} has no workflows to check with: name your own tools, at least --finishes "
            "'TOOL KEY=VALUE', and --fails and --endless if you have them"
        )
    read = _fixture_settings(tooling.fixture_settings(), settings)
    return LiveCheck(engine=engine, roles=None, settings=read, timeout=timeout, report=lines)


def _fixture_settings(model: type[BaseModel], words: Sequence[str]) -> BaseModel:
    pairs = [read_pair(word) for word in words]
    try:
        return model.model_validate({pair.path: json.loads(pair.text) if pair.raw else pair.text for pair in pairs})
    except ValidationError as error:
        wrong = [f"--set {'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors(include_url=False)]
        known = [f"--set {name}=...: {each.description}" for name, each in model.model_fields.items()]
        raise WrongUsage("\n".join([*wrong, "there are:", *known])) from None
    except ValueError as error:  # a value of `:=` that is not JSON
        raise WrongUsage(f"--set: {error}") from None


def _roles(config: Config, engine: Engine, parts: Mapping[str, str | None], answer: Sequence[str]) -> Fixtures:
    """Return the user's tools in the roles that they can play."""

    def role(part: str) -> Role:
        written = parts[part]
        if written is None:
            return Role(workflow="", missing=f"no tool was named: --{part} {_TOOL}")
        mine = [tool for tool in config.tools if tool.engine == engine.name]
        tool, arguments = _read_call(mine, written, f"--{part}")
        if tool.kind is Kind.WATCH or engine.kind.fleeting(tool.options):
            raise ConfigError(f"--{part} {tool.name}: its executions cannot be looked up later")
        if wrong := tool.complaints(arguments or {}):
            raise WrongUsage(f"--{part} {tool.name}: {'; '.join(wrong)}")
        kept = fill_templates(tool, {"args": arguments or {}, **LOCAL.scope, "task": {"id": "0" * 40}}, LOCAL)
        return Role(workflow=tool.workflow, arguments=kept.input, options=kept.options)

    other = role("other")
    return Fixtures(
        finishes=role("finishes"),
        output=UNKNOWN,
        other_arguments=UNKNOWN if other.missing else other.arguments,
        fails=role("fails"),
        failure="",
        endless=role("endless"),
        asks=role("asks"),
        content=read_arguments(map(read_pair, answer), {}, {}),
        gaps={"an_execution_nobody_started_is_not_found": _NO_HANDLE},
    )


def _consent(run: LiveCheck, *, yes: bool) -> None:
    """Print what the check does, and continue only if the user agrees."""
    own = "It runs the tools that you named, side effects included."
    if run.roles is None:
        own = run.engine.kind.tooling.fixtures_notice()
    engine = f"{run.engine.name} ({run.engine.adapter})"
    say(f"the check starts about 30 executions on engine {engine}, and ends those still running. {own}", err=True)
    if not yes and not sys.stdin.isatty():
        raise WrongUsage(f"no terminal to ask for consent: run {DISTRIBUTION} check --live {run.engine.name} --yes")
    if not yes:
        typer.confirm("Go on?", abort=True, err=True)


def _run(run: LiveCheck, *, as_json: bool) -> int:
    """Run the check, print the results and return the exit code."""
    if as_json:
        run.report = lambda _: None
    try:
        is_whole = anyio.run(run.run_until_interrupted)
    except KeyboardInterrupt:  # again, after everything was ended and removed
        is_whole = False
    if not is_whole:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all work is done; the exit code must be kept
        rest = "except those named below" if run.left else "and what was created was removed"
        say(f"interrupted; the started executions were ended, {rest}", err=True)
    elif as_json:
        found = {"adapter": run.engine.adapter, "promises": [asdict(each) for each in run.promises]}
        typer.echo(json.dumps(found, indent=1, ensure_ascii=False))
    else:
        counts = ", ".join(f"{run.count(verdict)} {verdict.value}" for verdict in Verdict)
        say(f"\n{len(run.promises)} checks: {counts}\n{_ORIGIN}")
    for left in run.left:
        say(f"still there: {left}", err=True)
    if not is_whole:
        return INTERRUPTED
    return 1 if run.count(Verdict.BROKEN) or not run.count(Verdict.HELD) or run.left else 0


class _Lines:
    """Prints each promise once, with its observations below it."""

    def __init__(self) -> None:
        self._last: str | None = None

    def __call__(self, promise: Promise) -> None:
        verdict = f"{promise.verdict.value:{_WIDTH}}"
        expected = f" (expected: {promise.expected})" if promise.expected and promise.verdict is Verdict.BROKEN else ""
        if promise.promise != self._last:
            say(f"{verdict}  {promise.promise}")
            verdict = " " * _WIDTH
        self._last = promise.promise
        if promise.seen:
            say(f"{verdict}  - {promise.seen}{expected}")


# --- gates on a recorded history


def _replay(config: Config, written: str, history: Path, *, as_json: bool) -> None:
    """Print what a client would have seen, and the gates that never opened."""
    tool, arguments = _read_call(config.tools, written, "--tool")
    tooling = config.engines[tool.engine].kind.tooling
    if not isinstance(tooling, Replays):
        raise ConfigError(f"the adapter of engine {tool.engine!r} cannot replay histories")
    if arguments is None:
        gates: Mapping[str, Gate] = {name: _as_written(tool, name) for name in tool.gates}
    else:
        gates = tool.frozen_gates({"args": arguments, **ANONYMOUS.scope, "task": {"id": None}})
    seen = tooling.replay(_read(history), gates)
    if as_json:
        typer.echo(json.dumps([_as_json(each) for each in seen], indent=2))
    else:
        for line in _lines(seen):
            say(line)
    asked = {request.gate for each in seen for request in each.execution.requests.values()}
    messages = " ".join(each.execution.message or "" for each in seen)
    for gate in gates:
        if gate not in asked and f"gate {gate}:" not in messages:
            say(f"gate {gate} was never open in this history: compare its `when` with the history", err=True)


def _read(path: Path) -> Any:  # Any: JSON
    try:
        return json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except json.JSONDecodeError as error:
        where = f"{path}:{error.lineno}:{error.colno}"
        raise ConfigError(f"{where}: not JSON: {error.msg}; export the history as JSON") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, or a number of thousands of digits
        raise ConfigError(f"{path}: not JSON ({type(error).__name__})") from None


def _as_written(tool: AnyTool, name: str) -> Gate:
    """Return a gate with its placeholders unfilled."""
    gate = tool.gates[name]
    asked = {"mode": "form", "message": gate.message, "requestedSchema": gate.form(name)}
    request = InputRequest(method=ELICIT, params={**asked, "_meta": {NAME_META: name}}, gate=name)
    return Gate(when=gate.when, request=request, send=gate.send, decline=gate.decline)


def _lines(seen: Sequence[Replayed]) -> Iterator[str]:
    for each in seen:
        requests = each.execution.requests.items()
        asked = ", ".join(f"{request.params.get('message') or 'a question'} ({key})" for key, request in requests)
        texts = [text for text in (asked, _message(each.execution)) if text]
        yield f"event {each.event} {STATUS[each.execution.status]}" + (f": {'; '.join(texts)}" if texts else "")


def _message(execution: Execution) -> str:
    text = execution.failure.text if execution.failure else execution.message or ""
    return f"{text} ({progress_text(execution.progress)})".strip() if execution.progress else text


def _as_json(each: Replayed) -> Mapping[str, Any]:  # Any: JSON
    execution = each.execution
    requests = {key: {"method": it.method, "params": it.params} for key, it in execution.requests.items()}
    seen = {"statusMessage": _message(execution), "inputRequests": requests, "output": execution.output}
    given = {name: value for name, value in seen.items() if value not in ("", {}, None)}
    return {"event": each.event, "status": STATUS[execution.status], **given}
