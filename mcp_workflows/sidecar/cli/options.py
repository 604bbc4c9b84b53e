"""What `mcp-workflows call` was asked for, and whether that goes together."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import typer

from mcp_workflows.access import is_loopback
from mcp_workflows.client.connection import Era
from mcp_workflows.sidecar import DISTRIBUTION
from mcp_workflows.sidecar.cli.arguments import WrongUsage
from mcp_workflows.sidecar.cli.config_file import DEFAULT_CONFIG


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What was asked for on the command line."""

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

    @property
    def come_back(self) -> str:
        """The options that lead to the same server, as the same kind of client."""
        era = "" if self.era is Era.TASKS else f" --era {self.era}"
        if self.url:
            token = f" --token-file {shlex.quote(self.token_file)}" if self.token_file else ""
            return f"{era} --url {shlex.quote(self.url)}{token}"
        return era if self.config == DEFAULT_CONFIG else f"{era} -c {shlex.quote(str(self.config))}"


def is_it_running(order: Order) -> str:
    """What to look at first if nobody answers at the URL."""
    place = urlsplit(order.url or "")
    asked = f"is `{DISTRIBUTION} serve` running there?"
    if not is_loopback(place.hostname or "") or place.port is None:
        return asked
    start = [DISTRIBUTION, "serve", str(order.config), "--http", place.netloc.rpartition("@")[2]]
    return f"{asked} Start it: {shlex.join(start)}"


def left_behind(order: Order | None, task_id: str | None) -> str:
    """What becomes of it when we leave, and how to come back."""
    if task_id is None or order is None:
        return "interrupted; what was started goes on, but no task is known to come back to"
    return f"the task goes on; come back with: {DISTRIBUTION} call --resume {task_id}{order.come_back}"


def read_json(file: typer.FileText | None) -> Mapping[str, Any]:  # Any: JSON
    """`--args-json`.

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


def read_token(file: typer.FileText | None) -> str | None:
    """`--token-file`: what is in there, without the blanks around it.

    Raises:
        WrongUsage: it is no token that can be sent.
    """
    if file is None:
        return None
    token = file.read().strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise WrongUsage("--token-file: there must be one token in it, and nothing else")
    return token


def check_usage(order: Order, *, dry_run: bool) -> None:
    """Raise `WrongUsage` if what was asked for does not go together."""
    problems = {
        "which tool? or --resume ID": not order.tool and not order.resume,
        "--resume ID comes without a tool and arguments": bool(order.resume and (order.tool or order.given)),
        f"--resume needs tasks: leave out --era {order.era}": bool(order.resume) and order.era is Era.NONE,
        f"--no-wait needs tasks: leave out --era {order.era}": not order.wait and order.era is Era.NONE,
        "--dry-run needs the configuration: leave out --url": dry_run and order.url is not None,
        "--token-file is for --url: here you are the local user": order.token is not None and order.url is None,
        "--dry-run starts nothing, so there is nothing to resume": dry_run and order.resume is not None,
    }
    for problem, there in problems.items():
        if there:
            raise WrongUsage(problem)
