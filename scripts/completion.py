"""Write mcp_workflows/sidecar/cli/completion.json: the commands and options that shells complete.

.venv/bin/python -m scripts.completion
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperArgument, TyperGroup
from typer.main import get_command

from mcp_workflows.sidecar.cli import completion
from mcp_workflows.sidecar.cli.app import MODULES, CommandLine, app

TABLE = Path(completion.__file__).with_name("completion.json")


def table(command: Any) -> Mapping[str, Any]:  # Any: a command of Typer's own Click; JSON
    """A command or group of commands, with all in it."""
    context = typer.Context(command)
    params = [
        _param(param, context)
        for param in command.params
        if param.name not in {"install_completion", "show_completion"} and not getattr(param, "hidden", False)
    ]
    shown = {"help": command.get_short_help_str(200), "params": params}
    if not isinstance(command, TyperGroup):
        return shown
    return {**shown, "commands": {name: table(command.commands[name]) for name in command.list_commands(context)}}


def _param(param: Any, context: typer.Context) -> Mapping[str, Any]:  # Any: see above
    argument = isinstance(param, TyperArgument)
    shown = (argument and param.display_type_rich(context)) or param.metavar or ""
    many = param.nargs != 1 or bool(getattr(param, "multiple", False))
    return {"name": param.name, "names": [] if argument else param.opts, "value": shown, "many": many}


def text() -> str:
    """What the file should be."""
    whole = get_command(app)
    assert isinstance(whole, CommandLine)
    whole.load(list(MODULES))
    root = dict(table(whole))
    commands = [f'"{name}": {json.dumps(each)}' for name, each in root.pop("commands").items()]
    lines = ",\n".join(commands)  # one a line, to be merged
    return json.dumps(root)[:-1] + f', "commands": {{\n{lines}\n}}}}\n'


if __name__ == "__main__":
    TABLE.write_text(text(), encoding="utf-8")
    print(TABLE)
