"""Checks of the requests that an endpoint gets: signatures, retries, and what must not come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from mcp_tasks_conformance.check import BlockedError, Feature, Level, Phase, Scenario, ToolRole, expect, skip_unless
from mcp_tasks_conformance.endpoint import Delivery
from mcp_tasks_conformance.event_polls import OCCURRENCE, occurrence_problem
from mcp_tasks_conformance.event_subscriptions import CLOCKS, IDENTITY, SECURITY, UNSUBSCRIBING
from mcp_tasks_conformance.events import each_trial, first_wrong
from mcp_tasks_conformance.traffic import format_json
from mcp_tasks_conformance.trial_run import SETTLED
from mcp_tasks_conformance.webhook_trial import WebhookTrial

DELIVERY: Final = "Events, Webhook Event Delivery"
CONTROL: Final = "Events, Non-event webhook bodies"
NEEDS: Final = (Feature.CALLBACK, ToolRole.FIRES)
MAX_BODY: Final = 256 * 1024
HEADERS: Final = ("webhook-id", "webhook-timestamp", "webhook-signature", "x-mcp-subscription-id")

event_deliveries = Scenario(name="delivering", title="Webhook deliveries")


@event_deliveries.check(Level.MUST, SECURITY, *NEEDS, phase=Phase.SEQUENTIAL)
@each_trial
async def verified_first(trial: WebhookTrial) -> None:
    """Before its first delivery, and before its subscription is accepted, an endpoint is asked with a challenge."""
    accepted = trial.reached(trial.subscribed).received_at
    asked = [one for one in trial.verifications if one.received_at <= accepted]
    first = min((one.received_at for one in trial.events), default=float("inf"))
    expect(asked and asked[0].received_at < first, f"{len(trial.hook.deliveries)} requests, none of them a challenge")


@event_deliveries.check(Level.MUST, CONTROL, Feature.CALLBACK, phase=Phase.SEQUENTIAL)
@each_trial
async def challenge_shape(trial: WebhookTrial) -> None:
    """A verification has a challenge, another one each time, and a webhook-id that begins with msg_verification_."""
    found = [*trial.verifications, *(one for one in trial.echoless.deliveries if one.is_verification)]
    skip_unless(found, "no verification was seen")
    challenges = {str(one.content.get("challenge", "")) for one in found}
    wrong = first_wrong(found, lambda one: one.headers.get("webhook-id", "").startswith("msg_verification_"))
    expect(not wrong, wrong)
    expect(
        "" not in challenges and len(challenges) == len(found), f"the challenges are {format_json(sorted(challenges))}"
    )


@event_deliveries.check(Level.MUST, CONTROL, Feature.CALLBACK, phase=Phase.SEQUENTIAL)
@each_trial
async def verification_is_signed(trial: WebhookTrial) -> None:
    """A verification is signed like a delivery."""
    skip_unless(trial.verifications, "no verification was seen")
    secrets = (trial.secret, trial.new_secret)
    wrong = first_wrong(trial.verifications, lambda one: any(map(one.is_signed_with, secrets)))
    expect(not wrong, wrong)


@event_deliveries.check(Level.MUST, SECURITY, Feature.CALLBACK, phase=Phase.SEQUENTIAL)
@each_trial
async def verified_once(trial: WebhookTrial) -> None:
    """The same URL and secret are not verified again for a refresh or for other arguments."""
    last = trial.reached(trial.rotated).sent_at
    asked = [one for one in trial.verifications if one.received_at < last]
    expect(len(asked) <= 1, f"{len(asked)} verifications came")


@event_deliveries.check(Level.MUST, SECURITY, *NEEDS, phase=Phase.SEQUENTIAL)
@each_trial
async def headers(trial: WebhookTrial) -> None:
    """Each delivery is a POST of application/json with the four headers, and has 256 KiB at most."""

    def is_good(one: Delivery) -> bool:
        is_json = one.headers.get("content-type", "").split(";")[0].strip().lower() == "application/json"
        return one.method == "POST" and is_json and all(map(one.headers.get, HEADERS)) and len(one.body) <= MAX_BODY

    _expect_each(trial, is_good)


@event_deliveries.check(Level.MUST, SECURITY, *NEEDS, phase=Phase.SEQUENTIAL)
@each_trial
async def signature(trial: WebhookTrial) -> None:
    """Each delivery is signed by Standard Webhooks, over its raw body, with the secret of the client."""
    _expect_each(trial, lambda one: any(map(one.is_signed_with, trial.secrets_at(one.received_at))))


@event_deliveries.check(Level.SHOULD, SECURITY, *NEEDS, phase=Phase.SEQUENTIAL)
@each_trial
async def signed_twice_while_rotating(trial: WebhookTrial) -> None:
    """After a rotation a delivery is signed with the former secret, too, for a while."""
    rotated = trial.reached(trial.rotated).received_at + SETTLED
    found = [one for one in trial.events if one.received_at > rotated]
    skip_unless(found, "no delivery came after the rotation")
    wrong = first_wrong(found, lambda one: one.is_signed_with(trial.secret))
    expect(not wrong, wrong)


@event_deliveries.check(Level.MUST, SECURITY, *NEEDS, phase=Phase.SEQUENTIAL)
@each_trial
async def timestamp(trial: WebhookTrial) -> None:
    """The webhook-timestamp is the time of the request in Unix seconds, less than five minutes away."""

    def is_good(one: Delivery) -> bool:
        sent = one.headers.get("webhook-timestamp", "")
        return sent.isdecimal() and abs(int(sent) - one.received_at) < CLOCKS

    _expect_each(trial, is_good)


@event_deliveries.check(Level.MUST, IDENTITY, *NEEDS, phase=Phase.SEQUENTIAL)
@each_trial
async def subscription_id(trial: WebhookTrial) -> None:
    """X-MCP-Subscription-Id of each delivery is the id in the result of events/subscribe."""
    wanted = trial.reached(trial.subscribed).reply.result.get("id")
    _expect_each(trial, lambda one: one.headers.get("x-mcp-subscription-id") == wanted)


@event_deliveries.check(Level.INTEROP, DELIVERY, *NEEDS, phase=Phase.SEQUENTIAL)
@each_trial
async def webhook_id(trial: WebhookTrial) -> None:
    """The webhook-id of an event is its eventId: clients in use refuse another one."""
    _expect_each(trial, lambda one: one.headers.get("webhook-id") == one.content.get("eventId"))


@event_deliveries.check(Level.MUST, OCCURRENCE, *NEEDS, phase=Phase.SEQUENTIAL)
@each_trial
async def occurrence_shape(trial: WebhookTrial) -> None:
    """The body is one EventOccurrence."""
    problems = [occurrence_problem(one.content, str(one.content.get("name"))) for one in _some_events(trial)]
    expect(not any(problems), next(filter(None, problems), ""))


@event_deliveries.check(Level.MUST, DELIVERY, *NEEDS, phase=Phase.SEQUENTIAL)
@each_trial
async def retried(trial: WebhookTrial) -> None:
    """An event that was answered with 503 is sent again, with the same webhook-id and eventId."""
    attempts = _refused(trial, 503)
    same = {one.content.get("eventId") for one in attempts}
    expect(
        len(attempts) > 1 and len(same) == 1,
        f"it was sent {len(attempts)} times, as {format_json(sorted(map(str, same)))}",
    )


@event_deliveries.check(Level.MUST, DELIVERY, *NEEDS, phase=Phase.SEQUENTIAL)
@each_trial
async def retried_afresh(trial: WebhookTrial) -> None:
    """Each attempt has a new timestamp and a new signature."""
    attempts = _refused(trial, 503)
    if len(attempts) < 2:
        raise BlockedError("it was not sent again")
    first, last = attempts[0], attempts[-1]
    apart = last.received_at - first.received_at
    sent = [int(one.headers.get("webhook-timestamp", "0")) for one in (first, last)]
    skip_unless(apart >= 1.5, f"it was sent again after {apart:.1f} s, too soon to tell")
    expect(sent[1] > sent[0], f"after {apart:.1f} s the timestamps are {sent[0]} and {sent[1]}")


@event_deliveries.check(Level.MUST, DELIVERY, *NEEDS, phase=Phase.SEQUENTIAL)
@each_trial
async def taken_once(trial: WebhookTrial) -> None:
    """An event that was answered with 2xx is not sent again."""
    _some_events(trial)
    for name, attempts in trial.attempts.items():
        answered = [one.answered for one in attempts]
        expect(answered.count(200) <= 1, f"{name} was answered with {', '.join(map(str, answered))}")


@event_deliveries.check(Level.MUST, SECURITY, *NEEDS, phase=Phase.SEQUENTIAL)
@each_trial
async def redirects_are_not_followed(trial: WebhookTrial) -> None:
    """A redirect is not followed."""
    _refused(trial, 307)
    expect(not trial.elsewhere.deliveries, f"{len(trial.elsewhere.deliveries)} requests came to the other URL")


@event_deliveries.check(Level.MUST, SECURITY, *NEEDS, phase=Phase.SEQUENTIAL)
@each_trial
async def too_large_is_final(trial: WebhookTrial) -> None:
    """An event that was answered with 413 is not sent again."""
    attempts = _refused(trial, 413)
    expect(len(attempts) == 1, f"it was sent {len(attempts)} times")


@event_deliveries.check(Level.INTEROP, UNSUBSCRIBING, *NEEDS, phase=Phase.SEQUENTIAL)
@each_trial
async def nothing_after_the_end(trial: WebhookTrial) -> None:
    """Events after events/unsubscribe are not delivered."""
    step = trial.reached(trial.unsubscribed)
    _some_events(trial)
    late = [name for name, each in trial.attempts.items() if each[0].received_at > step.received_at + SETTLED]
    if "result" not in step.reply.body:
        raise BlockedError(f"events/unsubscribe: {step.reply}")
    expect(not late, f"{len(late)} events came later")


def _expect_each(trial: WebhookTrial, is_good: Callable[[Delivery], object]) -> None:
    wrong = first_wrong(_some_events(trial), is_good)
    expect(not wrong, wrong)


def _some_events(trial: WebhookTrial) -> Sequence[Delivery]:
    if not trial.events:
        raise trial.without("no event was delivered")
    return trial.events


def _refused(trial: WebhookTrial, status: int) -> Sequence[Delivery]:
    """Return the attempts for the event whose first one was answered with this status."""
    _some_events(trial)
    attempts = trial.answered_first(status)
    if not attempts:
        raise BlockedError("not enough events were delivered")
    return attempts
