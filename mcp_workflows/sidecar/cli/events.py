"""The command `mcp-workflows events`: webhook subscriptions and channels, with their delivery problems."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import anyio
import typer

from mcp_workflows.access.audit import Audit, Event, record_of
from mcp_workflows.errors import OperatorError
from mcp_workflows.events.endpoints import ANSWER_WITHIN, EndpointFailed, Endpoints, host_of
from mcp_workflows.events.notifications import NotificationChannel
from mcp_workflows.events.subscriptions import Deliveries, Subscription, Subscriptions, channel_of, trouble
from mcp_workflows.sidecar.cli.app import COMMANDS, app, say
from mcp_workflows.sidecar.cli.format import render_facts
from mcp_workflows.sidecar.cli.options import DEFAULT_CONFIG, AsJson, ConfigOption, LogLevel, load_shared, log
from mcp_workflows.sidecar.config.models import Config
from mcp_workflows.sidecar.operator import MAX_SHOWN, OPERATOR
from mcp_workflows.sidecar.telemetry.exporters import exporters_of
from mcp_workflows.units import utc_now
from mcp_workflows.wire.events import Trouble
from mcp_workflows.wire.params import time_of

T = TypeVar("T")

_ADVICE: Final[Mapping[Trouble, str]] = {
    Trouble.REFUSED: "check that the receiver runs and is reachable from here, at a public address unless "
    "server.events.allow_private is true",
    Trouble.TIMEOUT: f"the receiver must answer within {ANSWER_WITHIN:g} s, and do its work later",
    Trouble.TLS: "the receiver needs a certificate for this host that this machine trusts",
    Trouble.HTTP_4XX: "check the receiver's path and signature check; redirects are not followed",
    Trouble.HTTP_5XX: "the receiver's log says why",
    Trouble.MAIL: "only channels get mail",
    Trouble.CHALLENGE: "it accepts events, but no client can subscribe again until it echoes the challenge",
}

event_commands = typer.Typer(help=COMMANDS["events"][1], no_args_is_help=True)
app.add_typer(event_commands, name="events")

SubscriptionId = Annotated[
    str, typer.Argument(metavar="ID", help="The subscription's id, or a unique beginning of it.")
]


@event_commands.command("list")
def list_subscriptions(as_json: AsJson = False, config: ConfigOption = DEFAULT_CONFIG) -> None:
    """List subscriptions, including those that ended in the last days, and notification channels."""

    async def do(subscriptions: Subscriptions, loaded: Config, _: Audit) -> Sequence[Mapping[str, Any]]:
        found = [_facts(*each) for each in await subscriptions.states()]
        for name, channel in loaded.notify.items():
            state = await subscriptions.deliveries(channel_of(name, channel.host))
            found.append(_facts_of_channel(name, channel, state))
        return found

    found = _run(config, do)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        typer.echo("\n\n".join(map(render_facts, map(_shown, found))) or "no subscriptions")


@event_commands.command("test")
def send_test(subscription_id: SubscriptionId, config: ConfigOption = DEFAULT_CONFIG) -> None:
    """Send a signed challenge to a subscription's endpoint, and print the reply."""

    async def do(subscriptions: Subscriptions, loaded: Config, audit: Audit) -> str:
        found, _ = await _find(subscriptions, subscription_id)
        now = utc_now()
        try:
            async with Endpoints(loaded.server.events) as endpoints:
                await endpoints.verify(found.url, found.secrets(now), subscription_id=found.id, now=now)
        except EndpointFailed as failed:
            said = f"{failed}: {failed.detail}" if failed.detail else str(failed)
            raise OperatorError(f"{host_of(found.url)}: {said}; {_ADVICE[failed.trouble]}") from None
        return host_of(found.url)

    say(f"{_run(config, do)}: the challenge was echoed; deliveries arrive there")


@event_commands.command()
def retry(subscription_id: SubscriptionId, config: ConfigOption = DEFAULT_CONFIG) -> None:
    """Resume a suspended subscription. The server then sends its pending events."""

    async def do(subscriptions: Subscriptions, _: Config, audit: Audit) -> int:
        found, state = await _find(subscriptions, subscription_id)
        if state is None or state.suspended is None:
            due = [each.due for each in state.pending.values()] if state else []
            later = f"; the next attempt is at {time_of(min(due))}" if due else ""
            raise OperatorError(f"nothing was done: it is not suspended{later}")
        await subscriptions.save(replace(found, refreshed=utc_now()), utc_now())
        audit(record_of(Event.SUBSCRIPTION, OPERATOR, outcome="resumed", reason=f"{found.name}: {found.principal.id}"))
        return len(state.pending)

    say(f"resumed; pending events: {_run(config, do)}")


async def _find(subscriptions: Subscriptions, name: str) -> tuple[Subscription, Deliveries | None]:
    """Return the subscription with this id, or the only one whose id begins with it.

    Raises:
        OperatorError: no subscription or several match, or it has ended.
    """
    found = [each for each in await subscriptions.states() if each[0].id.startswith(name)]
    if len(found) != 1:
        shown = ", ".join(each.id for each, _ in found[:MAX_SHOWN]) or "none"
        raise OperatorError(f"give the id of one subscription; those that begin with {name!r}: {shown}")
    if found[0][0].ended:
        raise OperatorError(f"it has {trouble(*found[0], utc_now())}: only its client can subscribe again")
    return found[0]


def _facts(found: Subscription, state: Deliveries | None) -> Mapping[str, Any]:  # Any: JSON
    """Return the facts for an operator, without the secret, and without the URL's path and query, which may be
    secret."""
    why = trouble(found, state, utc_now())
    return {
        "id": found.id,
        "event": found.name,
        "arguments": found.arguments,
        "host": host_of(found.url),
        "owner": found.principal.id,
        "state": why.split()[0] if why else "active",
        "why": why,
        "pending": len(state.pending) if state else 0,
        "lastDelivery": time_of(state.last_delivery) if state and state.last_delivery else None,
        "lastError": state.last_error if state else None,
        "refreshBefore": time_of(found.until),
    }


def _facts_of_channel(name: str, channel: NotificationChannel, state: Deliveries | None) -> Mapping[str, Any]:
    """Return the facts of a channel; pending events are retried."""
    fails = state is not None and state.failed_since is not None
    return {
        "channel": name,
        "to": channel.kind,
        "host": channel.host,
        "state": "failing" if fails else "active",
        "pending": len(state.pending) if state else 0,
        "failedSince": time_of(state.failed_since) if state and state.failed_since else None,
        "lastDelivery": time_of(state.last_delivery) if state and state.last_delivery else None,
        "lastError": state.last_error if state else None,
    }


def _shown(facts: Mapping[str, Any]) -> Mapping[str, str]:  # Any: JSON
    texts = {name: json.dumps(value) if isinstance(value, dict) else str(value) for name, value in facts.items()}
    return {name: text for name, text in texts.items() if facts[name] not in (None, {})}


def _run(config: Path, do: Callable[[Subscriptions, Config, Audit], Awaitable[T]]) -> T:
    log(LogLevel.ERROR)
    loaded = load_shared(config)
    exporters = exporters_of(loaded, printing=True)

    async def run() -> T:
        async with exporters, loaded.store.open() as store:
            return await do(Subscriptions(store), loaded, exporters.audit)

    return anyio.run(run)
