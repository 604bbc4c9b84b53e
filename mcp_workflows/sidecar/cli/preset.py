"""The commands `mcp-workflows preset list`, `preset show` and `preset schema`: settings for well-known engines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated

import typer

from mcp_workflows.adapter import installed_adapters, load_adapter
from mcp_workflows.errors import OperatorError
from mcp_workflows.kit.tooling import HasPresets, Preset
from mcp_workflows.sidecar.cli.app import app, say
from mcp_workflows.sidecar.config.problems import names
from mcp_workflows.tools.json_schema import did_you_mean

preset_app = typer.Typer(name="preset", help="Settings for known engines: list, show, schema.", no_args_is_help=True)
app.add_typer(preset_app)


@preset_app.command("list")
def list_presets() -> None:
    """List the presets of all installed adapters."""
    head = ("PRESET", "ADAPTER", "VERIFIED", "ENGINE")
    rows = [
        (name, adapter, preset.verified, f"{preset.title}, {preset.since}")
        for name, (adapter, preset) in _presets().items()
    ]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        say("  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip())


@preset_app.command("schema")
def show_schema(adapter: Annotated[str, typer.Argument(metavar="ADAPTER")] = "http") -> None:
    """Print the JSON Schema of a preset, for the editor in which you write one of your own."""
    tooling = load_adapter(adapter).tooling
    if not isinstance(tooling, HasPresets):
        raise OperatorError(f"the adapter {adapter!r} has no presets")
    say(json.dumps(tooling.preset_schema(), indent=2))


@preset_app.command("show")
def show_preset(name: Annotated[str, typer.Argument(metavar="NAME", help="One of `preset list`.")]) -> None:
    """Print the file of a preset; what an engine sets itself overrides it, key by key."""
    found = _presets()
    if name not in found:
        raise OperatorError(f"there is no preset {name!r}{did_you_mean(name, found)}; there are: {names(found)}")
    say(found[name][1].text.rstrip())


def _presets() -> Mapping[str, tuple[str, Preset]]:
    """Return the presets by name, with their adapters."""
    tools = {adapter: load_adapter(adapter).tooling for adapter in installed_adapters()}
    return {
        name: (adapter, preset)
        for adapter, tooling in tools.items()
        if isinstance(tooling, HasPresets)
        for name, preset in tooling.presets().items()
    }
