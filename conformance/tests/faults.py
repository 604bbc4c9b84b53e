"""Faults of a server, and the check of the suite that must detect each."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from conformance.tests.event_server import Body, Mutate, part
from conformance.tests.receiver import RELATED

IMMEDIATE = "io.modelcontextprotocol/model-immediate-response"
UNKNOWN = "786512e2-9e0d-44bd-8f29-789f320fe840"
EVERYWHERE = ("tools/call", "tasks/get", "tasks/list", "tasks/cancel", "notifications/tasks/status")
DROP = object()

Change = Callable[[Body, Body], object]  # params, and what to change in place


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault; `mutate` makes a new function for each run, since some faults keep state."""

    check: str
    flags: Sequence[str] = ()
    mutate: Callable[[], Mutate] | None = None
    also: frozenset[str] = field(default_factory=frozenset[str])  # checks that may fail as well
    anonymous: bool = False

    def __str__(self) -> str:
        """Return the id of the check."""
        return self.check


def flagged(check: str, *flags: str, also: Sequence[str] = (), anonymous: bool = False) -> Fault:
    """Return a fault that the receiver implements."""
    return Fault(check=check, flags=flags, also=frozenset(also), anonymous=anonymous)


def mutated(check: str, methods: str | Sequence[str], change: Change, *, also: Sequence[str] = ()) -> Fault:
    """Return a fault that changes the body of every message of these methods in place."""
    wanted = {methods} if isinstance(methods, str) else set(methods)

    def mutate(method: str, params: Body, body: Body) -> Body:
        if method in wanted:
            change(params, body)
        return body

    return Fault(check=check, mutate=lambda: mutate, also=frozenset(also))


def counted(check: str, make: Callable[[], Mutate], *, also: Sequence[str] = ()) -> Fault:
    """Return a fault that keeps state."""
    return Fault(check=check, mutate=make, also=frozenset(also))


def tasks_in(body: Body) -> list[Body]:
    """Return every task in a body."""
    shown: Body = body.get("result") or body.get("params") or {}
    if "tasks" in shown:
        return shown["tasks"]
    return [shown["task"]] if "task" in shown else [shown] if "taskId" in shown else []


def every(**changes: Any) -> Change:
    """Return a change that sets these fields in every task; `DROP` removes a field."""

    def change(_: Body, body: Body) -> None:
        for task in tasks_in(body):
            task.update(changes)
            for name in [name for name, value in changes.items() if value is DROP]:
                del task[name]

    return change


def when(status: str, /, **changes: Any) -> Change:
    """Return a change that sets these fields in tasks of this status."""

    def change(params: Body, body: Body) -> None:
        for task in tasks_in(body):
            if task["status"] == status:
                every(**changes)(params, {"result": task})

    return change


def label(params: Body) -> str:
    """Return the label argument of a call: the role of the slow tool."""
    return part(params, "arguments").get("label", "")


def of_label(wanted: str, change: Change) -> Change:
    """Limit a change to the CreateTaskResult for this role."""

    def changed(params: Body, body: Body) -> None:
        if label(params) == wanted and "task" in body.get("result", {}):
            change(params, body)

    return changed


def saying(said: str, change: Change) -> Change:
    """Limit a change to results and errors that contain this text."""
    return lambda params, body: change(params, body) if said in str(body) else None


def replaced(**new: Any) -> Change:
    """Return a change that replaces the body."""

    def change(_: Body, body: Body) -> None:
        body.clear()
        body.update(new)

    return change


def capability(change: Callable[[Body], object], version: str = "2025-11-25") -> Change:
    """Return a change of the declared capabilities at this version."""

    def changed(params: Body, body: Body) -> None:
        if params["protocolVersion"] == version:
            body["result"]["capabilities"] = {**body["result"]["capabilities"]}
            body["result"]["capabilities"]["tasks"] = {**body["result"]["capabilities"].get("tasks", {})}
            change(body["result"]["capabilities"])

    return changed


def refused_with(code: int, wanted: Callable[[Body], bool]) -> Change:
    """Return a change of the error code for requests with such params."""

    def change(params: Body, body: Body) -> None:
        if wanted(params) and "error" in body:
            body["error"]["code"] = code

    return change


def is_unknown(params: Body) -> bool:
    """Return True for the id of no task."""
    return params.get("taskId") == UNKNOWN


def is_malformed(params: Body) -> bool:
    """Return True for an id that no task can have."""
    return not isinstance(params.get("taskId"), str) or not params["taskId"]


def unasked(params: Body, body: Body) -> None:
    """Return a task for a call without params.task."""
    if label(params) == "quick" and "task" not in params:
        moment = "2026-01-01T00:00:00Z"
        task = {"taskId": "x" * 32, "status": "working", "createdAt": moment, "lastUpdatedAt": moment, "ttl": None}
        replaced(result={"task": task})(params, body)


def numbered(_: Body, body: Body) -> None:
    """Replace the task id by a number."""
    body["result"]["task"]["taskId"] = int(body["result"]["task"]["taskId"][:12], 16)


def flat(_: Body, body: Body) -> None:
    """Return the task in the shape of 2026-07-28."""
    body["result"] = body["result"]["task"]


def meta(change: Callable[[Body], object], where: str = "result") -> Change:
    """Return a change of `_meta`."""

    def changed(_: Body, body: Body) -> None:
        if where in body:
            change(body[where].setdefault("_meta", {}))

    return changed


def listing(change: Callable[[list[Body]], list[Body]]) -> Change:
    """Return a change of the tasks on a page."""

    def changed(_: Body, body: Body) -> None:
        if "result" in body:
            body["result"]["tasks"] = change(body["result"]["tasks"])

    return changed


def flickering() -> Mutate:
    """Show a completed task as failed the second time."""
    looks: Counter[str] = Counter()

    def mutate(method: str, _: Body, body: Body) -> Body:
        if method == "tasks/get" and body.get("result", {}).get("status") == "completed":
            looks[body["result"]["taskId"]] += 1
            if looks[body["result"]["taskId"]] > 1:
                return {"result": {**body["result"], "status": "failed"}}
        return body

    return mutate


def fetched_once() -> Mutate:
    """Return a result only once."""
    seen: set[str] = set()

    def mutate(method: str, params: Body, body: Body) -> Body:
        if method != "tasks/result" or "computed quick" not in str(body):
            return body
        if params["taskId"] in seen:
            return {"error": {"code": -32602, "message": "fetched already"}}
        seen.add(params["taskId"])
        return body

    return mutate


def overlapping() -> Mutate:
    """Begin every page with the last task of the page before."""
    last: dict[str, Body] = {}

    def mutate(method: str, params: Body, body: Body) -> Body:
        if method == "tasks/list" and "result" in body:
            shown = body["result"]["tasks"]
            known = last.get(params.get("cursor", ""))
            last.update({task["taskId"]: task for task in shown[-1:]})
            return {"result": {**body["result"], "tasks": [known, *shown] if known else shown}}
        return body

    return mutate


def standing_still() -> Mutate:
    """Always report the progress 1."""
    values = itertools.repeat(1)

    def mutate(method: str, _: Body, body: Body) -> Body:
        if method == "notifications/progress":
            return {"params": {**body["params"], "progress": next(values)}}
        return body

    return mutate


def declared(change: Callable[[Body], object]) -> Change:
    """Return a change of the declared capabilities."""
    return lambda _, body: change(body["result"]["capabilities"])


def set_everywhere(capabilities: Body) -> None:
    """Declare Events in another form, in both places."""
    capabilities["events"] = {"listChanged": "yes"}
    capabilities["extensions"] = {"io.modelcontextprotocol/events": {"listChanged": "yes"}}


def undeclared(capabilities: Body) -> None:
    """Declare no Events."""
    capabilities.clear()


def of_progress(**changes: Any) -> Change:
    """Return a change of the type task.progress."""

    def change(_: Body, body: Body) -> None:
        if "result" in body:
            body["result"]["events"][1].update(changes)

    return change


def result_of(change: Callable[[Body], object], wanted: Callable[[Body], bool] = bool) -> Change:
    """Return a change of results for requests with such params."""
    return lambda params, body: change(body["result"]) if "result" in body and wanted(params) else None


def in_events(change: Callable[[Body], object]) -> Change:
    """Return a change of each polled event."""
    return result_of(lambda result: [change(event) for event in result["events"]])


def in_frame(change: Callable[[Body], object]) -> Change:
    """Return a change of the params of a notification."""
    return lambda _, body: change(body["params"])


def error_of(said: str, change: Callable[[Body], object], wanted: Callable[[Body], bool] = bool) -> Change:
    """Return a change of errors that contain this text, for requests with such params."""
    return lambda params, body: (
        change(body["error"]) if said in body.get("error", {}).get("message", "") and wanted(params) else None
    )


def coded(code: int) -> Callable[[Body], object]:
    """Return a change of the code of an error."""
    return lambda error: error.update(code=code)


def told_frames() -> Change:
    """Return a change that names another stream."""
    return in_frame(lambda params: params["_meta"].update({"io.modelcontextprotocol/subscriptionId": "another"}))


EVENT_FAULTS: Sequence[Fault] = (
    mutated("events.declared-in-each-revision", "server/discover", declared(undeclared)),
    mutated("events.settings-are-an-object", "initialize", declared(set_everywhere)),
    mutated("events.declared-where-clients-look", "server/discover", declared(lambda given: given.pop("events"))),
    mutated(
        "events.names-are-unique", "events/list", result_of(lambda result: result["events"].append(result["events"][1]))
    ),
    mutated("events.modes-are-known", "events/list", of_progress(delivery=["poll", "push", "smoke"])),
    mutated("events.schemas-are-schemas", "events/list", of_progress(payloadSchema="object")),
    flagged("events.bad-cursor", "any-list-cursor"),
    flagged("polling.starts-now", "replays-all"),
    mutated("polling.result-shape", "events/poll", result_of(lambda result: result.update(nextPollMs=0))),
    flagged("polling.event-arrives", "polls-nothing"),
    mutated("polling.occurrence-shape", "events/poll", in_events(lambda event: event.update(timestamp="just now"))),
    mutated("polling.data-fits", "events/poll", in_events(lambda event: event["data"].update(status=7))),
    flagged("polling.cursor-advances", "cursor-stays", also=["polling.max-events"]),
    flagged("polling.ids-are-stable", "fresh-ids-polled", also=["polling.max-age", "streaming.same-id-as-polled"]),
    flagged("polling.max-events", "ignores-max-events"),
    flagged("polling.max-age", "ignores-max-age", also=["polling.max-age-is-told"]),
    mutated(
        "polling.max-age-is-told",
        "events/poll",
        result_of(lambda result: result.update(truncated=False), lambda params: "maxAgeMs" in params),
    ),
    flagged("polling.unknown-cursor", "refuses-cursors"),
    mutated("polling.unknown-event", "events/poll", error_of("no such event", coded(-32602))),
    mutated("polling.unknown-event-kind", "events/poll", error_of("no such event", lambda error: error.pop("data"))),
    mutated("polling.wrong-arguments-refused", "events/poll", error_of("arguments", coded(-32603))),
    flagged("polling.only-where-offered", "any-mode"),
    mutated(
        "streaming.active-first",
        "notifications/events/active",
        in_frame(lambda params: params["truncated"] or params.pop("truncated")),
    ),
    mutated("streaming.frames-name-the-request", "notifications/events/active", told_frames()),
    flagged(
        "streaming.event-arrives",
        "streams-nothing",
        also=["streaming.side-by-side", "streaming.cursor-is-behind-its-event"],
    ),
    mutated(
        "streaming.occurrence-shape", "notifications/events/event", in_frame(lambda params: params.update(timestamp=5))
    ),
    mutated(
        "streaming.same-id-as-polled",
        "notifications/events/event",
        in_frame(lambda params: params.update(eventId=f"stream-{params['eventId']}")),
    ),
    flagged("streaming.resumes", "streams-from-now"),
    flagged("streaming.cursor-is-behind-its-event", "stream-cursor-before"),
    flagged("streaming.unknown-cursor", "refuses-stream-cursors"),
    mutated("streaming.unknown-event", "events/stream", error_of("no such event", coded(-32602))),
    mutated("streaming.wrong-arguments-refused", "events/stream", error_of("arguments", coded(-32603))),
    flagged("streaming.side-by-side", "one-stream", also=["streaming.resumes", "streaming.cursor-is-behind-its-event"]),
    flagged("streaming.closing-releases", "leaks-streams"),
    flagged("streaming.heartbeat", "no-heartbeat"),
    flagged("subscribing.only-https", "http-anywhere"),
    mutated(
        "subscribing.url-is-a-url",
        "events/subscribe",
        error_of("delivery.url", coded(-32603), lambda params: part(params, "delivery").get("url") == 7),
    ),
    mutated("subscribing.bad-secret", "events/subscribe", error_of("delivery.secret", coded(-32603))),
    mutated(
        "subscribing.delivery-is-required",
        "events/subscribe",
        error_of("", coded(-32603), lambda params: params.get("delivery") is None),
    ),
    mutated(
        "subscribing.only-webhooks", "events/subscribe", error_of("only webhooks", lambda error: error.pop("data"))
    ),
    mutated("subscribing.unknown-event", "events/subscribe", error_of("no such event", coded(-32602))),
    flagged("subscribing.arguments-before-the-endpoint", "asks-first"),
    flagged("subscribing.anonymous", "anybody-subscribes"),
    flagged("subscribing.challenge-must-be-echoed", "any-echo"),
    flagged("subscribing.endpoints-words-are-kept", "repeats-words"),
    mutated(
        "subscribing.unreachable-endpoint",
        "events/subscribe",
        error_of("no endpoint", lambda error: error["data"].update(reason="timeout")),
    ),
    mutated("subscribing.accepted", "events/subscribe", result_of(lambda result: result.pop("truncated"))),
    flagged("subscribing.ttl-is-no-longer", "long-ttl"),
    mutated(
        "subscribing.expires-unless-asked",
        "events/subscribe",
        result_of(lambda result: result.update(refreshBefore=None)),
        also=["subscribing.ttl-is-no-longer"],
    ),
    flagged(
        "subscribing.refresh-keeps-the-id",
        "id-per-call",
        also=["subscribing.order-of-arguments", "subscribing.secret-rotates", "delivering.subscription-id"],
    ),
    flagged(
        "subscribing.order-of-arguments",
        "ordered-keys",
        also=[
            "delivering.signature",
            "delivering.subscription-id",
            "delivering.taken-once",
            "delivering.nothing-after-the-end",
        ],
    ),
    flagged("subscribing.other-arguments", "one-id"),
    flagged("subscribing.secret-rotates", "refuses-rotation"),
    flagged("subscribing.not-by-others", "anybody-unsubscribes"),
    mutated(
        "subscribing.unsubscribed",
        "events/unsubscribe",
        lambda _, body: (
            body.update(error={"code": -32603, "message": "no"}) if body.pop("result", None) is not None else None
        ),
    ),
    flagged("subscribing.unsubscribed-twice", "unsubscribes-twice"),
    flagged(
        "delivering.verified-first",
        "no-verification",
        also=["subscribing.challenge-must-be-echoed", "subscribing.unreachable-endpoint"],
    ),
    flagged("delivering.challenge-shape", "same-challenge"),
    flagged("delivering.verification-is-signed", "unsigned-verification"),
    flagged("delivering.verified-once", "verifies-always"),
    flagged("delivering.headers", "plain-text"),
    flagged("delivering.signature", "signs-another-body", also=["delivering.signed-twice-while-rotating"]),
    flagged("delivering.signed-twice-while-rotating", "forgets-the-old-secret"),
    flagged("delivering.timestamp", "milliseconds"),
    flagged("delivering.subscription-id", "foreign-id"),
    flagged("delivering.webhook-id", "message-ids"),
    flagged("delivering.occurrence-shape", "unix-time"),
    flagged("delivering.retried", "never-retries"),
    flagged("delivering.retried-afresh", "stale-retries"),
    flagged("delivering.taken-once", "sends-twice"),
    flagged("delivering.redirects-are-not-followed", "follows-redirects"),
    flagged("delivering.too-large-is-final", "retries-413"),
    flagged("delivering.nothing-after-the-end", "keeps-delivering"),
)
"""At least one fault for every check of Events."""

TASK_FAULTS: Sequence[Fault] = (
    mutated("negotiation.declared", "initialize", capability(lambda given: given.pop("tasks"))),
    mutated("negotiation.capability-objects", "initialize", capability(lambda given: given["tasks"].update(list=True))),
    mutated(
        "negotiation.not-in-older-revisions",
        "initialize",
        capability(lambda given: given["tasks"].update(list={}), "2025-06-18"),
    ),
    flagged("negotiation.task-ignored-if-undeclared", "tasks-anywhere"),
    mutated(
        "negotiation.task-support-values",
        "tools/list",
        lambda _, body: body["result"]["tools"].append({"name": "odd", "execution": {"taskSupport": "sometimes"}}),
    ),
    flagged("negotiation.forbidden-with-task", "forbidden-anyway"),
    mutated("negotiation.optional-without-task", "tools/call", unasked),
    mutated("negotiation.required-without-task", "tools/call", saying("must be a task", refused_with(-32600, bool))),
    mutated("negotiation.cancel-undeclared", "initialize", capability(lambda given: given["tasks"].pop("cancel"))),
    mutated("negotiation.list-undeclared", "initialize", capability(lambda given: given["tasks"].pop("list"))),
    flagged("negotiation.list-needs-an-identity", anonymous=True),
    mutated("creation.create-task-result", "tools/call", of_label("slow", flat)),
    mutated(
        "creation.without-the-result",
        "tools/call",
        of_label("quick", lambda _, body: body["result"].update(content=[])),
    ),
    flagged("creation.prompt", "slow-creation"),
    mutated(
        "creation.starts-working",
        "tools/call",
        of_label("slow", lambda _, body: body["result"]["task"].update(status="input_required")),
    ),
    mutated("creation.id-is-a-string", "tools/call", of_label("quick", numbered)),
    flagged("creation.id-is-the-receivers", "takes-ids"),
    flagged("creation.ids-are-unique", "same-ids", also=["shape.times-in-order"]),
    flagged("creation.ids-cannot-be-guessed", "short-ids", anonymous=True),
    flagged("creation.known-at-once", "known-late"),
    flagged("creation.ttl-honoured", "own-ttl"),
    mutated(
        "creation.ttl-actual",
        "tasks/get",
        lambda _, body: body["result"].update(ttl=body["result"]["ttl"] + 1) if "result" in body else None,
    ),
    flagged("creation.ttl-has-a-maximum", "any-ttl"),
    flagged("creation.expired-tasks-go", "keeps-expired"),
    flagged("creation.ttl-must-be-a-number", "string-ttl"),
    mutated(
        "creation.immediate-response",
        "tools/call",
        of_label("quick", meta(lambda found: found.update({IMMEDIATE: 7}))),
    ),
    mutated("shape.created-at", EVERYWHERE, every(createdAt=1_764_000_000)),
    mutated("shape.last-updated-at", EVERYWHERE, every(lastUpdatedAt="just now")),
    mutated("shape.times-in-order", EVERYWHERE, every(lastUpdatedAt="2020-01-01T00:00:00Z")),
    mutated("shape.ttl", "tasks/get", every(ttl=DROP), also=["creation.ttl-actual"]),
    mutated("shape.poll-interval", "tasks/get", every(pollInterval=-5)),
    mutated("shape.status", "tasks/get", when("working", status="running")),
    mutated("shape.status-message", "tasks/get", when("completed", statusMessage={"text": "well done"})),
    counted("shape.the-end-is-final", flickering),
    mutated("shape.no-related-task", "tasks/get", meta(lambda found: found.update({RELATED: {"taskId": "x"}}))),
    mutated("shape.related-task-in-result", "tasks/result", meta(lambda found: found.clear())),
    mutated("shape.related-task-in-requests", "elicitation/create", meta(lambda found: found.clear(), "params")),
    mutated("shape.errors-say-why", "tasks/get", lambda _, body: body.get("error", {}).update(message="")),
    flagged("shape.get-is-no-stream", "get-streams"),
    mutated("shape.status-notification", "notifications/tasks/status", every(ttl=DROP)),
    mutated(
        "shape.status-notification-without-meta",
        "notifications/tasks/status",
        meta(lambda found: found.update({RELATED: {"taskId": "x"}}), "params"),
    ),
    flagged(
        "results.completed",
        "fails-slow",
        also=[
            "results.after-a-lost-connection",
            "results.not-cancelled-with-the-request",
            "telling.status-is-notified",
        ],
    ),
    flagged(
        "results.blocks",
        "does-not-wait-working",
        also=["results.others-are-served-meanwhile", "results.after-a-lost-connection", "asking.result-blocks"],
    ),
    mutated(
        "results.same-as-the-plain-call",
        "tasks/result",
        saying("computed quick", lambda _, body: body["result"].update(structuredContent={"result": 1})),
    ),
    counted("results.again", fetched_once),
    flagged(
        "results.two-at-once",
        "one-waiter",
        also=["results.after-a-lost-connection", "asking.asked-again-after-a-lost-connection"],
    ),
    flagged("results.others-are-served-meanwhile", "ping-waits"),
    flagged(
        "results.after-a-lost-connection", "dies-with-connection", also=["asking.asked-again-after-a-lost-connection"]
    ),
    flagged("results.is-error-is-failed", "is-error-completed"),
    mutated(
        "results.is-error-is-returned",
        "tasks/result",
        saying("no such disk", replaced(error={"code": -32000, "message": "it failed"})),
    ),
    flagged("results.error-is-failed", "error-completed"),
    mutated(
        "results.error-is-returned", "tasks/result", saying("boom", replaced(error={"code": -32000, "message": "boom"}))
    ),
    mutated("results.failure-has-a-message", "tasks/get", saying("boom", every(statusMessage=DROP))),
    mutated(
        "results.failure-message-is-the-tools", "tasks/get", saying("no such disk", every(statusMessage="it failed"))
    ),
    flagged("results.in-another-session", "session-bound"),
    flagged("results.not-cancelled-with-the-request", "cancelled-by-notification"),
    mutated(
        "refusing.get-unknown", "tasks/get", refused_with(-32001, is_unknown), also=["isolation.looks-like-unknown"]
    ),
    mutated("refusing.get-invalid", "tasks/get", refused_with(-32603, is_malformed)),
    mutated("refusing.result-unknown", "tasks/result", refused_with(-32001, is_unknown)),
    mutated("refusing.result-invalid", "tasks/result", refused_with(-32603, is_malformed)),
    mutated("refusing.cancel-unknown", "tasks/cancel", refused_with(-32001, is_unknown)),
    mutated("refusing.cancel-invalid", "tasks/cancel", refused_with(-32603, is_malformed)),
    flagged("refusing.get-ignores-metadata", "trusts-meta tasks/get"),
    flagged("refusing.result-ignores-metadata", "trusts-meta tasks/result", also=["shape.related-task-in-result"]),
    flagged("refusing.cancel-ignores-metadata", "trusts-meta tasks/cancel"),
    mutated(
        "cancelling.reply-shows-it",
        "tasks/cancel",
        lambda _, body: body["result"].update(status="working") if "result" in body else None,
        also=["cancelling.while-input-is-required"],
    ),
    flagged(
        "cancelling.before-the-reply",
        "cancels-later",
        also=["cancelling.for-ever", "cancelling.not-twice", "shape.the-end-is-final"],
    ),
    flagged("cancelling.for-ever", "revives", also=["shape.the-end-is-final"]),
    flagged("cancelling.not-if-completed", "cancels-completed", also=["refusing.cancel-ignores-metadata"]),
    flagged("cancelling.not-if-failed", "cancels-failed"),
    flagged("cancelling.not-twice", "cancels-cancelled"),
    flagged("cancelling.result-is-answered", "result-of-cancelled-hangs"),
    flagged("cancelling.waiting-result-is-answered", "waiting-result-hangs"),
    flagged("cancelling.while-input-is-required", "keeps-input_required"),
    mutated(
        "listing.shows-what-get-shows",
        "tasks/list",
        listing(lambda tasks: tasks[1:]),
    ),
    counted("listing.next-cursor", overlapping, also=["listing.each-once"]),
    mutated(
        "listing.each-once",
        "tasks/list",
        listing(lambda tasks: [*tasks, *tasks[:1]]),
    ),
    flagged("listing.bad-cursor", "any-cursor"),
    counted("telling.progress-increases", standing_still),
    flagged("telling.progress-after-the-creation", "progress-only-before"),
    flagged("telling.progress-ends-with-the-task", "late-progress"),
    mutated("telling.progress-names-the-task", "notifications/progress", meta(lambda found: found.clear(), "params")),
    mutated("telling.status-is-notified", "notifications/tasks/status", replaced()),
    mutated("asking.status", "tasks/get", when("input_required", status="working")),
    flagged(
        "asking.result-blocks",
        "does-not-wait-input_required",
        also=["asking.one-of-two-answers-is-not-enough"],
    ),
    flagged("asking.asked-on-the-result-stream", "asks-nobody", also=["asking.two-questions"]),
    flagged(
        "asking.goes-on-when-answered",
        "ignores-accept",
        also=[
            "asking.result-blocks",
            "asking.two-questions",
            "asking.asked-though-it-only-polls",
            "asking.asked-again-after-a-lost-connection",
        ],
    ),
    flagged("asking.asked-though-it-only-polls", "asks-no-poller"),
    flagged("asking.goes-on-when-declined", "ignores-decline"),
    flagged("asking.two-questions", "asks-first-only"),
    flagged("asking.one-of-two-answers-is-not-enough", "ends-at-first-answer"),
    flagged("asking.asked-again-after-a-lost-connection", "asks-once"),
    flagged("asking.only-who-can-be-asked", "asks-anybody"),
    flagged("isolation.get", "not-isolated tasks/get", also=["isolation.looks-like-unknown"]),
    flagged("isolation.result", "not-isolated tasks/result"),
    flagged("isolation.cancel", "not-isolated tasks/cancel"),
    flagged("isolation.listed", "lists-all"),
    flagged("isolation.looks-like-unknown", "tells-foreign"),
)
"""At least one fault for every check of tasks."""

FAULTS = (*TASK_FAULTS, *EVENT_FAULTS)
"""At least one fault for every check."""
