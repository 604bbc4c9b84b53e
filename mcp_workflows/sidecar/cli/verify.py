"""The command `mcp-workflows verify`: find out which promises hold on an engine, in the user's own account."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import anyio
import typer
from pydantic import BaseModel, ValidationError

from mcp_workflows.access import LOCAL
from mcp_workflows.adapter import Fixtures, Role
from mcp_workflows.errors import ConfigError
from mcp_workflows.kit.tooling import HasFixtures
from mcp_workflows.sidecar import DISTRIBUTION
from mcp_workflows.sidecar.cli.app import app, say
from mcp_workflows.sidecar.cli.arguments import WrongUsage, read_arguments, read_pair
from mcp_workflows.sidecar.cli.options import DEFAULT_CONFIG, ConfigOption, LogLevel, load, log
from mcp_workflows.sidecar.config.models import Config, Engine
from mcp_workflows.sidecar.config.problems import names, no_engine
from mcp_workflows.sidecar.verify.run import Plan, Promise, Verdict, Verification, run_until_interrupted
from mcp_workflows.testing.laws import UNKNOWN
from mcp_workflows.tools.json_schema import did_you_mean
from mcp_workflows.tools.prepare import fill_templates
from mcp_workflows.tools.tool import AnyTool, Kind

INTERRUPTED: Final = 130
_WIDTH: Final = 9  # of the longest verdict
_ORIGIN: Final = (
    "Nobody has run this command in a cloud yet: its checks were tried on local engines only. What is broken or odd in "
    "your account is worth an issue."
)
_NO_HANDLE: Final = "for tools of yours no handle of nothing is known; `mcp-workflows check` looks at one"

_TOOL = "'TOOL [KEY=VALUE ...]'"


@app.command()
def verify(
    engine: Annotated[str, typer.Argument(metavar="ENGINE", help="The engine, by its name in the configuration.")],
    finishes: Annotated[
        str | None, typer.Option(metavar=_TOOL, help="A tool whose workflow succeeds soon, and its arguments.")
    ] = None,
    other: Annotated[
        str | None, typer.Option(metavar=_TOOL, help="The same tool with other arguments: they must be refused.")
    ] = None,
    fails: Annotated[str | None, typer.Option(metavar=_TOOL, help="A tool whose workflow fails soon.")] = None,
    endless: Annotated[
        str | None, typer.Option(metavar=_TOOL, help="A tool whose workflow runs until it is cancelled.")
    ] = None,
    asks: Annotated[str | None, typer.Option(metavar=_TOOL, help="A tool whose workflow asks one question.")] = None,
    answer: Annotated[
        list[str] | None, typer.Option(metavar="FIELD=VALUE", help="What to answer to --asks; FIELD:=JSON likewise.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="What the adapter needs to create workflows (a role)."),
    ] = None,
    patience: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="How long an execution may take to end.")
    ] = 60,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before something is started.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs: one JSON object.")] = False,
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Find out which promises hold on an engine, with executions that are started and ended there.

    Exit code 0: no promise is broken, 1: one is, or nothing could be tried, 2: wrong usage, 130: interrupted.
    """
    log(LogLevel.ERROR)
    loaded = load(config)
    if engine not in loaded.engines:
        raise ConfigError(no_engine(engine, loaded.engines))
    parts = {"finishes": finishes, "other": other, "fails": fails, "endless": endless, "asks": asks}
    try:
        plan = _plan(
            loaded.engines[engine],
            _roles(loaded, engine, parts, answer or []) if any(parts.values()) else None,
            settings or [],
            patience,
        )
    except (WrongUsage, ValueError) as error:
        say(str(error), err=True)
        raise typer.Exit(2) from None
    _ask(plan, yes=yes)
    raise typer.Exit(_verified(plan, as_json=as_json))


def _verified(plan: Plan, *, as_json: bool) -> int:
    """Run it, print what is found and return the exit code."""
    found = Verification()
    try:
        is_whole = anyio.run(run_until_interrupted, plan, found, _silent if as_json else _Lines())
    except KeyboardInterrupt:  # once more, when all was ended and removed
        is_whole = False
    if not is_whole:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done by now, and the exit code says how
        rest = "but for what is named below" if found.left else "and what was created is removed"
        say(f"interrupted; what was started has been ended, {rest}", err=True)
        _report_left(found)
        return INTERRUPTED
    if as_json:
        typer.echo(json.dumps(found.as_json(plan.engine.adapter), indent=1, ensure_ascii=False))
    else:
        _summary(found)
    _report_left(found)
    is_bad = found.count(Verdict.BROKEN) or not found.count(Verdict.HELD) or found.left
    return 1 if is_bad else 0


class _Lines:
    """Prints each promise once, with what was seen below it."""

    def __init__(self) -> None:
        self._last: str | None = None

    def __call__(self, promise: Promise) -> None:
        verdict = f"{promise.verdict.value:{_WIDTH}}"
        expected = f" (expected: {promise.expected})" if promise.expected and promise.verdict is Verdict.BROKEN else ""
        if promise.promise != self._last:
            say(f"{verdict}  {promise.promise}")
        elif promise.seen:
            say(f"{verdict}  - {promise.seen}{expected}")
            return
        self._last = promise.promise
        if promise.seen:
            say(f"{'':{_WIDTH}}  - {promise.seen}{expected}")


def _silent(_: Promise) -> None:
    """Print nothing: the JSON has it."""


def _summary(found: Verification) -> None:
    counts = ", ".join(f"{found.count(verdict)} {verdict.value}" for verdict in Verdict)
    measured = ", ".join(f"{name}: {value:g}" for name, value in found.measured.items())
    say(f"\n{len(found.promises)} checks: {counts}\nmeasured: {measured}\n{_ORIGIN}")


def _report_left(found: Verification) -> None:
    for left in found.left:
        say(f"still there: {left}", err=True)


# --- the workflows


def _plan(engine: Engine, roles: Fixtures | None, settings: Sequence[str], patience: float) -> Plan:
    """Return the plan.

    Raises:
        ConfigError: there are no workflows to verify with.
        WrongUsage: the settings are wrong.
    """
    tooling = engine.kind.tooling
    if roles is None and not isinstance(tooling, HasFixtures):
        raise ConfigError(
            f"the adapter {engine.adapter!r} brings no workflows to verify with: name tools of yours, at least "
            "--finishes 'TOOL KEY=VALUE', and --fails and --endless if there are such"
        )
    own = tooling if roles is None and isinstance(tooling, HasFixtures) else None
    read = None if own is None else _settings(own.fixture_settings(), settings)
    return Plan(engine=engine, roles=roles, settings=read, patience=patience)


def _settings(model: type[BaseModel], words: Sequence[str]) -> BaseModel:
    pairs = [read_pair(word) for word in words]
    try:
        return model.model_validate({pair.path: json.loads(pair.text) if pair.raw else pair.text for pair in pairs})
    except ValidationError as error:
        wrong = [f"--set {'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors(include_url=False)]
        known = [f"--set {name}=...: {each.description}" for name, each in model.model_fields.items()]
        raise WrongUsage("\n".join([*wrong, "there are:", *known])) from None


def _roles(config: Config, engine: str, parts: Mapping[str, str | None], answer: Sequence[str]) -> Fixtures:
    """Return tools of the user in the parts that they can play.

    Raises:
        ConfigError: there is no such tool on this engine.
        WrongUsage: the arguments are wrong.
    """
    roles = {part: _role(config, engine, part, written) for part, written in parts.items()}
    other = roles["other"]
    return Fixtures(
        finishes=roles["finishes"],
        output=UNKNOWN,
        other_arguments=UNKNOWN if other.missing else other.arguments,
        fails=roles["fails"],
        failure="",
        endless=roles["endless"],
        asks=roles["asks"],
        content=read_arguments(map(read_pair, answer), {}, {}),
        gaps={"an_execution_nobody_started_is_not_found": _NO_HANDLE},
    )


def _role(config: Config, engine: str, part: str, written: str | None) -> Role:
    if written is None:
        return Role(workflow="", missing=f"no tool was named: --{part} {_TOOL}")
    name, *words = shlex.split(written)
    tool = _tool(config, engine, name)
    if tool.kind is Kind.WATCH or config.engines[engine].kind.fleeting(tool.options):
        raise ConfigError(f"--{part} {name}: it starts nothing that can be looked up later")
    arguments = read_arguments(map(read_pair, words), tool.input, {})
    if wrong := tool.complaints(arguments):
        raise WrongUsage(f"--{part} {name}: {'; '.join(wrong)}")
    kept = fill_templates(tool, {"args": arguments, **LOCAL.scope, "task": {"id": "0" * 40}}, LOCAL)
    return Role(workflow=tool.workflow, arguments=kept.input, options=kept.options)


def _tool(config: Config, engine: str, name: str) -> AnyTool:
    tools = {tool.name: tool for tool in config.tools if tool.engine == engine}
    if name not in tools:
        raise ConfigError(f"engine {engine} has no tool {name!r}{did_you_mean(name, tools)} (it has: {names(tools)})")
    return tools[name]


def _ask(plan: Plan, *, yes: bool) -> None:
    """Say what will be done, and go on only if the user agrees.

    Raises:
        typer.Exit: the user does not, or nobody can be asked.
    """
    own = "It uses the tools that you named; what their workflows do is done."
    if plan.roles is None:
        own = plan.engine.kind.tooling.fixtures_notice()
    say(
        f"verify starts some 30 executions on engine {plan.engine.name} ({plan.engine.adapter}), and ends those that "
        f"run. {own}",
        err=True,
    )
    if yes:
        return
    if not sys.stdin.isatty():
        say(f"nobody can be asked here: {DISTRIBUTION} verify --yes", err=True)
        raise typer.Exit(2)
    typer.confirm("Go on?", abort=True, err=True)
