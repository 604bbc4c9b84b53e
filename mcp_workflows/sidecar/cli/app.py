"""The command line: a module per command, imported when the command is called.

Importing all commands takes seconds. So the help lists them from the table that shells complete from.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any, Final

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

from mcp_workflows.sidecar import DISTRIBUTION
from mcp_workflows.sidecar.cli.completion import table

MODULES: Final[Mapping[str, str]] = {
    "call": "call",
    "check": "check",
    "serve": "serve",
    "connect": "connect",
    "schema": "connect",
    "dev": "dev",
    "docs": "docs",
    "import": "import_",
    "init": "init",
    "new-adapter": "new_adapter",
    "preset": "preset",
    "helper": "helper",
    "iam": "iam",
    "replay": "replay",
    "verify": "verify",
    "token": "token",
    "config": "config",
    "tasks": "tasks",
    "store": "store",
    "engines": "engines",
}
"""The module of each command, in the order of the help."""


class CommandLine(TyperGroup):
    """All commands: each as an outline until it is called."""

    def get_params(self, ctx: Any) -> list[Any]:  # Any: Click's context and parameters, or Typer's copies of them
        return _without_types(super().get_params(ctx), ctx)

    def list_commands(self, ctx: Any) -> list[str]:  # Any: see above
        return list(MODULES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # Any: see above; a command of Click's or of the copy
        if cmd_name in self.commands or cmd_name not in MODULES:
            return super().get_command(ctx, cmd_name)
        return TyperCommand(cmd_name, help=table()["commands"][cmd_name]["help"])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # Any: see above
        self.load(args[:1])
        return super().resolve_command(ctx, args)

    def load(self, names: Sequence[str]) -> None:
        """Import the modules of these commands."""
        gc.disable()  # imports leave no garbage, and looking for it takes 0.2 s of two
        for name in names:
            if name in MODULES:
                import_module(f"mcp_workflows.sidecar.cli.{MODULES[name]}")
                self.commands[name] = _registered(name)
        gc.enable()


app = typer.Typer(
    cls=CommandLine,
    name=DISTRIBUTION,
    help="Your workflow engine's executions as MCP tasks, in every MCP host.",
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


@lru_cache
def _registered(name: str) -> Any:  # Any: a command of Click's, or of Typer's copy of it
    """Return a command whose module has been imported, with the metavars of its help."""
    root = get_command(app)
    assert isinstance(root, TyperGroup), "the callback makes it a group"
    command = root.commands[name]
    for each in [command, *(command.commands.values() if isinstance(command, TyperGroup) else ())]:
        context = typer.Context(each)
        _without_types(each.get_params(context), context)
    return command


def _without_types(params: Iterable[Any], ctx: Any) -> list[Any]:  # Any: see above
    """Return parameters as the help shows them, without their Python types."""
    params = list(params)
    for param in params:
        if isinstance(param, TyperArgument):
            param.metavar = param.metavar or param.name.upper()
            param.__class__ = _Argument
        elif isinstance(param, TyperOption) and _TYPES_ARE_SHOWN:
            param.metavar = _placeholder(param, ctx)
    return params


_TYPES_ARE_SHOWN = hasattr(TyperArgument, "display_type_rich")  # by Typers that show `<bool>` and `<str>`


class _Argument(TyperArgument):
    """An argument in the help: `TOOL`, or `[CONFIG]` if it is optional, without its Python type."""

    def get_usage_pieces(self, ctx: Any) -> list[str]:  # Any: Click's context, or Typer's copy of it
        name = f"{self.metavar}..." if self.nargs != 1 else str(self.metavar)
        return [name if self.required else f"[{name}]"]

    def display_type_rich(self, ctx: Any) -> str | None:  # Any: see above
        shown = super().display_type_rich(ctx)
        return shown if shown and "|" in shown else None


def _placeholder(option: TyperOption, context: typer.Context) -> str:
    """Return the value of an option in the help: none for a flag, `<a|b>` for a choice, else `TOOL` for `--tool`."""
    if option.is_flag:
        return ""
    choices = option.display_type(context).replace("list[", "").replace("]", "")
    return option.metavar or (choices if "|" in choices else option.opts[0].lstrip("-").upper())


def say(text: str, *, err: bool = False) -> None:
    """Print text that may contain what workflows, engines and clients wrote."""
    typer.echo(harmless(text), err=err)


def harmless(text: str) -> str:
    """Replace control characters: text from a server must not steer the terminal."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else " " for letter in text)
