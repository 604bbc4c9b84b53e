"""The run of a webhook trial: subscribe, refresh, make events happen, answer them badly, rotate, unsubscribe."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

import anyio

from mcp_tasks_conformance.check import JSON, UNEXPECTED, BlockedError, CheckError, Feature, ViolationError, unexpected
from mcp_tasks_conformance.endpoint import Answer, Delivery, Respond, echo, new_secret
from mcp_tasks_conformance.events import EventsUnderTest, events_of
from mcp_tasks_conformance.server_under_test import ServerUnderTest, require_reply
from mcp_tasks_conformance.session import ClientSession
from mcp_tasks_conformance.webhook_trial import Step, WebhookTrial

DAY: Final = 86_400_000  # ms
MARK: Final = "the-endpoints-own-words"  # of the endpoint's response, which no client may see
REDIRECT: Final = 307
ANSWERS: Final = (503, REDIRECT, 413)  # to the first delivery of the first events
SETTLED: Final = 1.0  # seconds after a reply in which a delivery may still be under way


async def run_trials(server: ServerUnderTest) -> None:
    """Run one trial in each revision in which the server declares Events."""
    if server.skip_reason(Feature.CALLBACK) is not None:
        return
    async with anyio.create_task_group() as group:
        for events in events_of(server):
            group.start_soon(_run_trial, events)


async def _run_trial(events: EventsUnderTest) -> None:
    elsewhere, hook = events.endpoint.open(), events.endpoint.open()
    trial = WebhookTrial(
        hook=hook,
        elsewhere=elsewhere,
        echoless=events.endpoint.open(_without_echo),
        secret=new_secret(),
        new_secret=new_secret(),
        arguments=events.wanted["arguments"],
    )
    hook.respond = _answers(trial)
    events.server.trials[events.version] = trial
    try:
        async with events.session() as session:
            await _take_steps(events, session, trial)
    except CheckError as error:
        trial.trouble = error
    except UNEXPECTED as error:
        trial.trouble = ViolationError(unexpected(error))


async def _take_steps(events: EventsUnderTest, session: ClientSession, trial: WebhookTrial) -> None:
    trial.refused = await _subscribe(events, session, trial.echoless.url, trial.secret)
    if events.endpoint.is_local:
        trial.unreachable = await _subscribe(events, session, events.endpoint.closed_url(), trial.secret)
    trial.subscribed = await _subscribe(events, session, trial.hook.url, trial.secret)
    if "result" not in trial.subscribed.reply.body:
        raise BlockedError(f"events/subscribe: {trial.subscribed.reply}")
    await _refresh(events, session, trial)
    if await _fire(events, trial, len(ANSWERS)):
        await events.wait(lambda: all(_is_over(trial.answered_first(status)) for status in ANSWERS))
    await _listen_on(events, trial)
    await _rotate(events, session, trial)
    await _unsubscribe(events, session, trial)


async def _refresh(events: EventsUnderTest, session: ClientSession, trial: WebhookTrial) -> None:
    """Subscribe again with the same arguments, in another order, and with others."""
    url, secret = trial.hook.url, trial.secret
    trial.refreshed = await _subscribe(events, session, url, secret)
    if len(trial.arguments) > 1:
        backwards = dict(reversed(list(trial.arguments.items())))
        trial.reordered = await _subscribe(events, session, url, secret, arguments=backwards)
    required = events.schema.get("required") or ()
    optional = [name for name in trial.arguments if name not in required]
    if optional:
        fewer = {name: value for name, value in trial.arguments.items() if name != optional[-1]}
        trial.other = await _subscribe(events, session, url, secret, arguments=fewer)
        await _request(session, "events/unsubscribe", {**_key(events, url), "arguments": fewer})
    if events.server.settings.other_headers is not None:
        async with events.session(other=True) as stranger:
            trial.foreign = await _request(stranger, "events/unsubscribe", _key(events, url))


async def _listen_on(events: EventsUnderTest, trial: WebhookTrial) -> None:
    """Listen on for longer than a retry takes, for what must not come."""
    retried = trial.answered_first(ANSWERS[0])
    took = retried[1].received_at - retried[0].received_at if len(retried) > 1 else 0.0
    trial.quiet = min(1.5 * took + 0.5, events.timeout)
    await anyio.sleep(trial.quiet)


async def _rotate(events: EventsUnderTest, session: ClientSession, trial: WebhookTrial) -> None:
    trial.rotated = await _subscribe(events, session, trial.hook.url, trial.new_secret)
    moment, known = trial.rotated.received_at + SETTLED, set(trial.attempts)
    await anyio.sleep(SETTLED)
    if await _fire(events, trial):
        await events.wait(lambda: any(one.received_at > moment for one in _first(trial, known)))


async def _unsubscribe(events: EventsUnderTest, session: ClientSession, trial: WebhookTrial) -> None:
    key = _key(events, trial.hook.url)
    trial.unsubscribed = await _request(session, "events/unsubscribe", key)
    trial.again = await _request(session, "events/unsubscribe", key)
    await anyio.sleep(SETTLED)
    known = set(trial.attempts)
    if await _fire(events, trial):
        await events.wait(lambda: _first(trial, known), within=trial.quiet)


async def _fire(events: EventsUnderTest, trial: WebhookTrial, times: int = 1) -> bool:
    """Make the event happen so often, and return False if that cannot be."""
    try:
        for _ in range(times):
            await events.server.fire()
    except CheckError as error:
        trial.trouble = error
        return False
    return True


async def _subscribe(events: EventsUnderTest, session: ClientSession, url: str, secret: str, **params: JSON) -> Step:
    sent_at = time.time()
    delivery = events.delivery(url=url, secret=secret)
    return Step(reply=await events.subscribe(session, delivery=delivery, ttlMs=DAY, **params), sent_at=sent_at)


async def _request(session: ClientSession, method: str, params: Mapping[str, JSON]) -> Step:
    sent_at = time.time()
    return Step(reply=await require_reply(session, method, params), sent_at=sent_at)


def _key(events: EventsUnderTest, url: str) -> Mapping[str, JSON]:
    return {**events.wanted, "delivery": {"url": url}}


def _first(trial: WebhookTrial, known: set[str]) -> Sequence[Delivery]:
    """Return the first deliveries of events that are not known yet."""
    return [attempts[0] for name, attempts in trial.attempts.items() if name not in known]


def _is_over(attempts: Sequence[Delivery]) -> bool:
    """Return True for an event that was taken in the end, or must not come again."""
    return bool(attempts) and (attempts[0].answered == ANSWERS[-1] or len(attempts) > 1)


def _answers(trial: WebhookTrial) -> Respond:
    """Refuse the first delivery of the first events, each in another way, and take all else."""

    def respond(delivery: Delivery) -> Answer:
        seen = trial.attempts
        if not trial.judges(delivery) or delivery.headers.get("webhook-id", "") in seen or len(seen) >= len(ANSWERS):
            return echo(delivery)
        status = ANSWERS[len(seen)]
        return Answer(status=status, location=trial.elsewhere.url if status == REDIRECT else None)

    return respond


def _without_echo(delivery: Delivery) -> Answer:
    """Answer a challenge with other words."""
    return Answer(content={"challenge": "no", "note": MARK})
