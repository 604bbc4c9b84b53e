"""The command line: a module per command, imported when the command is called, and the entry point.

Standard output contains only a command's result (MCP on stdio, a snippet, JSON); everything else goes to standard
error. Exit codes: 0 for success, 1 for an error with a clear message, 2 for wrong usage.

Importing all commands takes seconds, so the help lists them from a table.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any, Final

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

from mcp_workflows.adapter.redaction import mask
from mcp_workflows.errors import OperatorError, WorkflowsError
from mcp_workflows.sidecar import DISTRIBUTION

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "init": ("init", "Create a configuration, or print what to add to one."),
    "check": ("check", "Check the configuration, store, engines and workflows."),
    "serve": ("serve", "Serve the configured tools over stdio or HTTP."),
    "dev": ("dev", "Serve, and reload when a file is saved."),
    "connect": ("connect", "Print what to add to your MCP host's configuration."),
    "call": ("call", "Call a tool, answer its questions and wait for the result."),
    "tasks": ("tasks", "List, show, explain, answer, cancel and track tasks."),
    "events": ("events", "List, test and retry subscriptions to events."),
    "print": ("print_", "Print schemas, permissions, presets and other files."),
    "skills": ("print_", "Write Agent Skills: how to use each tool, or how to expose a workflow."),
    "token": ("token", "Create a bearer token."),
    "store": ("store", "Encrypt, migrate, back up or move the store."),
    "engines": ("engines", "Rebind tasks to an engine whose identity changed."),
    "pause": ("engines", "Refuse new starts: all, or by engine, tool or principal."),
    "resume": ("engines", "Allow new starts after a pause."),
    "new-adapter": ("new_adapter", "Create a package for your own adapter."),
}
"""The module and help text of each command, in the order of the help."""


class WrongUsage(OperatorError):  # noqa: N818  # what is wrong is the usage
    """Wrong usage; the message contains the correct usage."""


class CommandLine(TyperGroup):
    """All commands, each as an outline until it is called."""

    def get_params(self, ctx: Any) -> list[Any]:  # Any: Click's context and parameters, or Typer's copies of them
        return _without_types(super().get_params(ctx), ctx)

    def list_commands(self, ctx: Any) -> list[str]:  # Any: see above
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # Any: see above; a command of Click's or of the copy
        if cmd_name in self.commands or cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name][1])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # Any: see above
        if args[0] in COMMANDS:
            gc.disable()  # imports leave no garbage, and a collection takes 0.2 s of two
            import_module(f"mcp_workflows.sidecar.cli.{COMMANDS[args[0]][0]}")
            gc.enable()
            self.commands[args[0]] = registered(args[0])
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=CommandLine,
    name=DISTRIBUTION,
    help="Offer your workflow engine's executions as MCP tasks, in every MCP host.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"{DISTRIBUTION} {version(DISTRIBUTION)}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Your workflow engine's executions as MCP tasks, in every MCP host."""


def main() -> None:
    """Run the command; print the errors of this package as messages, without a stack trace."""
    failures: list[WorkflowsError] = []
    try:
        app(prog_name=DISTRIBUTION)
    except* WorkflowsError as group:
        failures.extend(_errors(group))
    for failure in failures:
        say(mask(str(failure)), err=True)
    sys.exit(0 if not failures else 2 if isinstance(failures[0], WrongUsage) else 1)


def _errors(group: BaseExceptionGroup[WorkflowsError]) -> Iterator[WorkflowsError]:
    for error in group.exceptions:
        yield from _errors(error) if isinstance(error, BaseExceptionGroup) else [error]


@lru_cache
def registered(name: str) -> Any:  # Any: a command of Click's, or of Typer's copy of it
    """Return a command whose module is imported, with the metavars of its help."""
    root = get_command(app)
    assert isinstance(root, TyperGroup), "the callback makes it a group"
    command = root.commands[name]
    for each in [command, *(command.commands.values() if isinstance(command, TyperGroup) else ())]:
        context = typer.Context(each)
        _without_types(each.get_params(context), context)
    return command


def _without_types(params: Iterable[Any], ctx: Any) -> list[Any]:  # Any: see above
    """Return parameters for the help, without their Python types."""
    params = list(params)
    for param in params:
        if isinstance(param, TyperArgument):
            param.metavar = param.metavar or param.name.upper()
            param.__class__ = _Argument
        elif isinstance(param, TyperOption) and _TYPES_ARE_SHOWN:
            choices = param.display_type(ctx).replace("list[", "").replace("]", "")
            name = choices if "|" in choices else param.opts[0].lstrip("-").upper()  # `<a|b>`, else `TOOL` for `--tool`
            param.metavar = "" if param.is_flag else param.metavar or name
    return params


_TYPES_ARE_SHOWN = hasattr(TyperArgument, "display_type_rich")  # in versions of Typer that show `<bool>` and `<str>`


class _Argument(TyperArgument):
    """An argument in the help: `TOOL`, or `[CONFIG]` if optional, without its Python type."""

    def get_usage_pieces(self, ctx: Any) -> list[str]:  # Any: Click's context, or Typer's copy of it
        name = f"{self.metavar}..." if self.nargs != 1 else str(self.metavar)
        return [name if self.required else f"[{name}]"]

    def display_type_rich(self, ctx: Any) -> str | None:  # Any: see above
        shown = super().display_type_rich(ctx)
        return shown if shown and "|" in shown else None


def say(text: str, *, err: bool = False) -> None:
    """Print text that may come from workflows, engines and clients."""
    typer.echo(harmless(text), err=err)


def harmless(text: str) -> str:
    """Replace control characters: text from a server must not control the terminal."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else " " for letter in text)
