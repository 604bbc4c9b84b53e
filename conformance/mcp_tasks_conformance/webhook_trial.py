"""The record of one webhook subscription from its begin to its end, which many checks judge."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mcp_tasks_conformance.check import JSON, BlockedError, CheckError, SkippedError
from mcp_tasks_conformance.endpoint import Delivery, Hook
from mcp_tasks_conformance.traffic import Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A request about a subscription, and its reply; times are in seconds since 1970, by the clock of the suite."""

    reply: Reply
    sent_at: float
    received_at: float = field(default_factory=time.time)


@dataclass(slots=True, kw_only=True)
class WebhookTrial:
    """One trial, in one revision. A step that was not taken is None, and `trouble` is why, if anything went wrong."""

    hook: Hook
    elsewhere: Hook  # where a redirect leads
    echoless: Hook  # an endpoint that does not echo the challenge
    secret: str
    new_secret: str
    arguments: Mapping[str, JSON]
    refused: Step | None = None  # the subscription of the endpoint that does not echo
    unreachable: Step | None = None
    subscribed: Step | None = None
    refreshed: Step | None = None
    reordered: Step | None = None  # the arguments in another order
    other: Step | None = None  # other arguments
    foreign: Step | None = None  # somebody else unsubscribes it
    rotated: Step | None = None  # refreshed with the new secret
    unsubscribed: Step | None = None
    again: Step | None = None  # unsubscribed once more
    quiet: float = 0.0  # seconds that the endpoint listened on after it had taken all
    trouble: CheckError | None = None

    def reached(self, step: Step | None) -> Step:
        """Return a step.

        Raises:
            BlockedError: the trial did not come so far.
            SkippedError: it could not be made.
        """
        if step is None:
            raise self.without("an earlier step was not taken")
        return step

    def without(self, otherwise: str) -> CheckError:
        """Return the error of a check for which the trial did not come far enough."""
        return self.trouble if isinstance(self.trouble, SkippedError) else BlockedError(str(self.trouble or otherwise))

    def judges(self, delivery: Delivery) -> bool:
        """Return True for an event, unless it is of the subscription with other arguments."""
        ids = [step.reply.result.get("id") for step in (self.subscribed, self.other) if step is not None]
        is_others = delivery.headers.get("x-mcp-subscription-id") in ids[1:] and ids[1:] != ids[:1]
        return delivery.is_event and not is_others

    @property
    def verifications(self) -> Sequence[Delivery]:
        """The questions if the endpoint wants deliveries."""
        return [each for each in self.hook.deliveries if each.is_verification]

    @property
    def events(self) -> Sequence[Delivery]:
        """The deliveries of events that the trial is about."""
        return [each for each in self.hook.deliveries if self.judges(each)]

    @property
    def attempts(self) -> Mapping[str, Sequence[Delivery]]:
        """The deliveries of each event, by its `webhook-id`."""
        found: dict[str, list[Delivery]] = {}
        for each in self.events:
            found.setdefault(each.headers.get("webhook-id", ""), []).append(each)
        return found

    def answered_first(self, status: int) -> Sequence[Delivery]:
        """Return the deliveries of the event whose first one was answered with this status; empty if there is none."""
        return next((each for each in self.attempts.values() if each[0].answered == status), ())

    def secrets_at(self, moment: float) -> Sequence[str]:
        """Return the secrets that may sign alone a delivery received at this moment."""
        if self.rotated is None or "result" not in self.rotated.reply.body or moment < self.rotated.sent_at:
            return [self.secret]
        return [self.secret, self.new_secret] if moment < self.rotated.received_at + 1 else [self.new_secret]
