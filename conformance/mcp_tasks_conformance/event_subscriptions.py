"""Checks of events/subscribe and events/unsubscribe: what is refused, and the identity of a subscription."""

from __future__ import annotations

import base64
from typing import Final

from mcp_tasks_conformance.check import (
    BlockedError,
    Feature,
    Level,
    Phase,
    Scenario,
    SkippedError,
    ToolRole,
    expect,
    skip_unless,
)
from mcp_tasks_conformance.endpoint import SECRET_PREFIX
from mcp_tasks_conformance.event_polls import ERRORS, UNKNOWN, expect_unknown_event, is_cursor
from mcp_tasks_conformance.events import (
    CALLBACK_FAILED,
    FORBIDDEN,
    INVALID_PARAMS,
    NOT_FOUND,
    NOWHERE,
    UNSUPPORTED,
    EventsUnderTest,
    each_revision,
    each_trial,
)
from mcp_tasks_conformance.message_shapes import parse_timestamp
from mcp_tasks_conformance.schemas import wrong_arguments
from mcp_tasks_conformance.session import open_session
from mcp_tasks_conformance.traffic import Traffic, as_object, format_json
from mcp_tasks_conformance.trial_run import DAY, MARK
from mcp_tasks_conformance.webhook_trial import Step, WebhookTrial

SUBSCRIBING: Final = "Events, Subscribing"
IDENTITY: Final = "Events, Subscription Identity"
TTL: Final = "Events, Subscription TTL"
SECURITY: Final = "Events, Webhook Security"
UNSUBSCRIBING: Final = "Events, Unsubscribing"
CLOCKS: Final = 300  # seconds by which the clock of the server may differ
ZEROS: Final = base64.b64encode(bytes(32)).decode()
BAD_SECRETS: Final = {
    "none": None,
    "without whsec_": ZEROS,
    "of 23 bytes": SECRET_PREFIX + base64.b64encode(bytes(23)).decode(),
    "of 65 bytes": SECRET_PREFIX + base64.b64encode(bytes(65)).decode(),
    "no base64": f"{SECRET_PREFIX}{'!' * 44}",
    "of the right length, but no base64": f"{SECRET_PREFIX}-{ZEROS[1:]}",
}

event_subscriptions = Scenario(name="subscribing", title="Webhook subscriptions")


@event_subscriptions.check(Level.MUST, SECURITY, Feature.WEBHOOK)
@each_revision
async def only_https(events: EventsUnderTest) -> None:
    """A delivery.url with http:// and another host than loopback is refused: -32602."""
    await _expect_invalid(events, url=NOWHERE.replace("https://", "http://"))


@event_subscriptions.check(Level.MUST, ERRORS, Feature.WEBHOOK)
@each_revision
async def url_is_a_url(events: EventsUnderTest) -> None:
    """A delivery.url that is missing, or is no URL, is refused: -32602."""
    for url in (None, "hooks.invalid", "https://", 7):
        await _expect_invalid(events, url=url)


@event_subscriptions.check(Level.MUST, SECURITY, Feature.WEBHOOK)
@each_revision
async def bad_secret(events: EventsUnderTest) -> None:
    """A delivery.secret other than whsec_ and base64 of 24 to 64 bytes is refused: -32602."""
    for name, secret in BAD_SECRETS.items():
        await _expect_invalid(events, f"a secret {name}", secret=secret)


@event_subscriptions.check(Level.MUST, SUBSCRIBING, Feature.WEBHOOK)
@each_revision
async def delivery_is_required(events: EventsUnderTest) -> None:
    """A subscription without delivery is refused: -32602."""
    async with events.session() as session:
        reply = await events.subscribe(session, delivery=None)
    expect(reply.code == INVALID_PARAMS, str(reply))


@event_subscriptions.check(Level.MUST, ERRORS, Feature.WEBHOOK)
@each_revision
async def only_webhooks(events: EventsUnderTest) -> None:
    """A delivery.mode other than webhook is refused: Unsupported, whose data names the deliveryMode."""
    async with events.session() as session:
        reply = await events.subscribe(session, delivery=events.delivery(mode="push"))
    feature = as_object(reply.error.get("data")).get("feature")
    expect(reply.code in UNSUPPORTED and feature == "deliveryMode", str(reply))


@event_subscriptions.check(Level.MUST, ERRORS, Feature.WEBHOOK)
@each_revision
async def unknown_event(events: EventsUnderTest) -> None:
    """A subscription to an unknown event is refused: NotFound, whose data.kind, where present, is event."""
    async with events.session() as session:
        expect_unknown_event(await events.subscribe(session, name=UNKNOWN, arguments={}))


@event_subscriptions.check(Level.MUST, ERRORS, Feature.CALLBACK)
@each_revision
async def arguments_before_the_endpoint(events: EventsUnderTest) -> None:
    """Arguments that do not fit the inputSchema are refused, -32602, and the endpoint is not asked."""
    hook = events.endpoint.open()
    async with events.session() as session:
        for arguments in wrong_arguments(events.schema, events.wanted["arguments"]):
            reply = await events.subscribe(session, arguments=arguments, delivery=events.delivery(url=hook.url))
            expect(reply.code == INVALID_PARAMS, f"{format_json(arguments)}: {reply}")
    expect(not hook.deliveries, f"the endpoint got {len(hook.deliveries)} requests")


@event_subscriptions.check(Level.MUST, IDENTITY, Feature.EVENTS)
@each_revision
async def anonymous(events: EventsUnderTest) -> None:
    """A caller without credentials is refused: Forbidden."""
    settings = events.server.settings
    try:
        async with open_session(
            events.server.http, settings.url, {}, Traffic(), settings.timeout, version=events.version
        ) as session:
            reply = await session.request("events/subscribe", events.subscription())
    except BlockedError as error:
        raise SkippedError(f"a caller without credentials may not even ask: {error}") from None
    skip_unless(
        settings.headers or reply.code in FORBIDDEN,
        "this run has no credentials, and the server takes its caller for somebody",
    )
    expect(reply.code in FORBIDDEN, str(reply))


@event_subscriptions.check(Level.MUST, SECURITY, Feature.CALLBACK, phase=Phase.SEQUENTIAL)
@each_trial
async def challenge_must_be_echoed(trial: WebhookTrial) -> None:
    """An endpoint that does not echo the challenge is refused: CallbackEndpointError with challenge_failed."""
    step = trial.reached(trial.refused)
    reason = as_object(step.reply.error.get("data")).get("reason")
    expect(step.reply.code in CALLBACK_FAILED and reason == "challenge_failed", str(step.reply))


@event_subscriptions.check(Level.MUST, "Events, Webhook Delivery Status", Feature.CALLBACK, phase=Phase.SEQUENTIAL)
@each_trial
async def endpoints_words_are_kept(trial: WebhookTrial) -> None:
    """The error contains no part of the endpoint's response."""
    step = trial.reached(trial.refused)
    skip_unless(trial.echoless.deliveries, "the endpoint was not asked")
    expect(MARK not in str(step.reply.body), str(step.reply))


@event_subscriptions.check(Level.MUST, SECURITY, Feature.CALLBACK, phase=Phase.SEQUENTIAL)
@each_trial
async def unreachable_endpoint(trial: WebhookTrial) -> None:
    """An endpoint that refuses connections is refused: CallbackEndpointError with connection_refused."""
    skip_unless(trial.unreachable or trial.trouble, "--callback names no loopback address")
    step = trial.reached(trial.unreachable)
    reason = as_object(step.reply.error.get("data")).get("reason")
    expect(step.reply.code in CALLBACK_FAILED and reason == "connection_refused", str(step.reply))


@event_subscriptions.check(Level.MUST, SUBSCRIBING, Feature.CALLBACK, phase=Phase.SEQUENTIAL)
@each_trial
async def accepted(trial: WebhookTrial) -> None:
    """A subscription whose endpoint echoes the challenge has an id, refreshBefore, a cursor and truncated."""
    result = trial.reached(trial.subscribed).reply.result
    named = isinstance(result.get("id"), str) and bool(result["id"])
    until = "refreshBefore" in result and (
        result["refreshBefore"] is None or parse_timestamp(result["refreshBefore"]) is not None
    )
    flag = isinstance(result.get("truncated"), bool)
    expect(named and until and is_cursor(result.get("cursor")) and flag, str(trial.trouble or format_json(result)))


@event_subscriptions.check(Level.SHOULD, TTL, Feature.CALLBACK, phase=Phase.SEQUENTIAL)
@each_trial
async def ttl_is_no_longer(trial: WebhookTrial) -> None:
    """refreshBefore is not later than the ttlMs of a day that was asked for, and not in the past."""
    step = _accepted(trial)
    until = parse_timestamp(step.reply.result.get("refreshBefore"))
    seconds = None if until is None else until.timestamp() - step.received_at
    expect(seconds is not None and 0 < seconds <= DAY / 1000 + CLOCKS, format_json(step.reply.result))


@event_subscriptions.check(Level.MUST, TTL, Feature.CALLBACK, phase=Phase.SEQUENTIAL)
@each_trial
async def expires_unless_asked(trial: WebhookTrial) -> None:
    """refreshBefore is null only for a client that asked for no expiry by ttlMs null."""
    result = _accepted(trial).reply.result
    expect(result.get("refreshBefore", "none") is not None, format_json(result))


@event_subscriptions.check(Level.MUST, IDENTITY, Feature.CALLBACK, phase=Phase.SEQUENTIAL)
@each_trial
async def refresh_keeps_the_id(trial: WebhookTrial) -> None:
    """The same subscription again is a refresh, and has the same id."""
    _expect_same_id(trial, trial.reached(trial.refreshed))


@event_subscriptions.check(Level.MUST, IDENTITY, Feature.CALLBACK, phase=Phase.SEQUENTIAL)
@each_trial
async def order_of_arguments(trial: WebhookTrial) -> None:
    """The same arguments in another order are the same subscription."""
    skip_unless(len(trial.arguments) > 1, "it takes two arguments: --event")
    _expect_same_id(trial, trial.reached(trial.reordered))


@event_subscriptions.check(Level.MUST, IDENTITY, Feature.CALLBACK, phase=Phase.SEQUENTIAL)
@each_trial
async def other_arguments(trial: WebhookTrial) -> None:
    """Other arguments are another subscription, with another id."""
    first = _accepted(trial).reply.result.get("id")
    skip_unless(trial.other or trial.trouble, "it takes an argument that may be left out: --event")
    reply = trial.reached(trial.other).reply
    expect(reply.result.get("id", first) != first, f"{first} for both: {reply}")


@event_subscriptions.check(Level.MUST, IDENTITY, Feature.CALLBACK, phase=Phase.SEQUENTIAL)
@each_trial
async def secret_rotates(trial: WebhookTrial) -> None:
    """A refresh with a new secret is accepted, and has the same id."""
    _expect_same_id(trial, trial.reached(trial.rotated))


@event_subscriptions.check(
    Level.MUST, IDENTITY, Feature.CALLBACK, Feature.SECOND_IDENTITY, ToolRole.FIRES, phase=Phase.SEQUENTIAL
)
@each_trial
async def not_by_others(trial: WebhookTrial) -> None:
    """Another caller's events/unsubscribe with the same URL, name and arguments is refused; deliveries continue."""
    reply = trial.reached(trial.foreign).reply
    expect("error" in reply.body and trial.events, f"{reply}; then {len(trial.events)} deliveries came")


@event_subscriptions.check(Level.MUST, UNSUBSCRIBING, Feature.CALLBACK, phase=Phase.SEQUENTIAL)
@each_trial
async def unsubscribed(trial: WebhookTrial) -> None:
    """events/unsubscribe of a subscription returns a result."""
    reply = trial.reached(trial.unsubscribed).reply
    expect("result" in reply.body, str(reply))


@event_subscriptions.check(Level.INTEROP, ERRORS, Feature.CALLBACK, phase=Phase.SEQUENTIAL)
@each_trial
async def unsubscribed_twice(trial: WebhookTrial) -> None:
    """events/unsubscribe of a subscription that is not there is NotFound, whose data.kind is subscription."""
    reply = trial.reached(trial.again).reply
    kind = as_object(reply.error.get("data")).get("kind")
    expect(reply.code in NOT_FOUND and kind == "subscription", str(reply))


async def _expect_invalid(events: EventsUnderTest, what: str = "", **changes: object) -> None:
    async with events.session() as session:
        reply = await events.subscribe(session, delivery=events.delivery(**changes))
    expect(reply.code == INVALID_PARAMS, f"{what or format_json(changes)}: {reply}")


def _accepted(trial: WebhookTrial) -> Step:
    step = trial.reached(trial.subscribed)
    if "result" not in step.reply.body:
        raise trial.without("the subscription was refused")
    return step


def _expect_same_id(trial: WebhookTrial, step: Step) -> None:
    first = _accepted(trial).reply.result.get("id")
    expect("result" in step.reply.body and step.reply.result.get("id") == first, f"{first}, then {step.reply}")
