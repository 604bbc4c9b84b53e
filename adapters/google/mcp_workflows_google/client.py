"""The operations of Google's APIs that the adapter uses, with results in plain types.

Each call has a quota, a deadline and a place among the concurrent calls; reads are repeated, and errors translated.

Sources: https://cloud.google.com/workflows/docs/reference/executions/rest, https://cloud.google.com/workflows/quotas;
the quotas of callbacks are estimates.
"""

# pyright: reportUnknownMemberType=false
# Reason: google-api-core and the official client are partly typed; replies are converted to our types at once.

from __future__ import annotations

import logging
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import takewhile
from typing import Any, Final, TypeVar

import anyio
import anyio.lowlevel
from google.api_core.exceptions import FailedPrecondition, GoogleAPICallError, RetryError
from google.api_core.retry import AsyncRetry
from google.cloud import workflows_v1
from google.cloud.workflows import executions_v1

from mcp_workflows.adapter import JSON, Allowance
from mcp_workflows.adapter.capabilities import replica_count
from mcp_workflows.errors import EngineError, EngineRefused, EngineUnavailable, ExecutionNotFound
from mcp_workflows.kit.token_bucket import BUCKETS, UNLIMITED, Bucket, BucketLimits, Buckets, QuotaKey
from mcp_workflows_google.connections import (
    EXECUTIONS,
    IN_OUR_CALL,
    WORKFLOWS,
    DeliveryOutcome,
    GrpcClients,
    HttpClient,
    rest_url,
)
from mcp_workflows_google.credentials import Credentials
from mcp_workflows_google.errors import (
    CallContext,
    CallKind,
    ErrorReply,
    ReplyError,
    is_transient,
    read_grpc_error,
    translate,
)
from mcp_workflows_google.resources import (
    Callback,
    ExecutionName,
    ExecutionResource,
    Place,
    WorkflowName,
    WorkflowResource,
    read_callback,
    read_execution,
    read_workflow,
)
from mcp_workflows_google.settings import GoogleSettings, Quota

logger = logging.getLogger(__name__)
T = TypeVar("T")

FULL_PAGE: Final = 50  # executions with argument (32 KB) and result (512 KB) fit into `connections.LARGEST`
BASIC_PAGE: Final = 1000  # Google's maximum
_WORKFLOWS_PAGE: Final = 500
_CALLBACKS_PAGE: Final = 100
_BATCH_EVERY: Final = 2.0  # seconds
_BATCH: Final = 10_000  # executions in 10 lists
_UNLIMITED_POLLS: Final = 50.0  # per second, without a known quota
_CALLBACK: Final = re.compile(r"/v1/(?P<execution>projects/[^?#]+?)/callbacks?/")
_MOST_PAIRS: Final = 1000  # remembered pairs of projects

_QUOTA_WAIT: Final = {True: 1.0, False: 4.0}  # seconds to wait for a token: a read (True), a write (False)
_FOR_WRITES: Final = 4  # one place in four is reserved for writes: slow reads never delay an answer or cancellation
_GRACE: Final = 0.5  # seconds: gRPC's own deadline comes first
_ELSEWHERE: Final = "elsewhere"  # all other locations share one bucket, because inbound requests can name any location
_MOST_ATTEMPTS: Final = 3  # of a read
_ATTEMPT: Final = 0.6  # share of the remaining time, which leaves time for another attempt

PER_MINUTE: Final[Mapping[str, float]] = {
    "get_execution": 6000,
    "list_executions": 1200,
    "write_executions": 6000,
    "list_callbacks": 1200,
    "send_callback": 6000,
    "read_workflows": 1200,
}
"""Google's quotas for one project in one location."""
_AT_ONCE: Final = 1 / 6
_MINUTE: Final = 60.0  # seconds


def limits(api: str, quota: Quota | None) -> BucketLimits:
    """Return the limits of this process for an API; unlimited without a quota.

    A bucket holds a sixth of its share and is refilled with the rest within a minute, so no minute exceeds the share.
    """
    if quota is None or api not in PER_MINUTE:
        return UNLIMITED
    whole: float = getattr(quota, api) or PER_MINUTE[api]
    share = whole * quota.share / replica_count(quota.replicas)
    return BucketLimits(bucket=max(1.0, share * _AT_ONCE), refill=share * (1 - _AT_ONCE) / _MINUTE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCall:
    """One call of an API."""

    kind: CallKind
    api: str  # the key of its quota, see `PER_MINUTE`
    permission: str
    resource: str
    place: Place
    service: str = EXECUTIONS

    @property
    def repeatable(self) -> bool:
        """True if the call changes nothing."""
        return self.kind in {CallKind.DESCRIBE, CallKind.READ}


@dataclass(slots=True, kw_only=True)
class _Attempts:
    """The attempts of one call."""

    made: int = 0
    renewed: bool = False  # the token was renewed once, because Google refused it
    deadline: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        """Seconds until the deadline, at least 0.001."""
        return max(0.001, self.deadline - time.monotonic())


Attempt = Callable[[Mapping[str, str], float], Awaitable[T]]  # headers, seconds


class ApiCaller:
    """Makes all calls of one engine."""

    def __init__(
        self, settings: GoogleSettings, clients: GrpcClients, credentials: Credentials, buckets: Buckets = BUCKETS
    ) -> None:
        self._settings = settings
        self._clients = clients
        self._credentials = credentials
        self._buckets = buckets
        self.project = settings.project  # None until known
        self.quota = settings.quota or (None if settings.emulator else Quota())
        places = settings.max_connections
        self._places = anyio.CapacityLimiter(places)
        self._reads = anyio.CapacityLimiter(places - places // _FOR_WRITES)

    async def send(self, call: ApiCall, method: str, request: Any) -> Any:  # Any: messages of the official client
        """Call a method of the official client, which never retries.

        Raises:
            EngineError: the call failed; see `errors`.
        """

        async def attempt(headers: Mapping[str, str], seconds: float) -> Any:
            return await self._clients.send(call.service, method, request, headers, seconds)

        return await self.make(call, attempt)

    async def make(self, call: ApiCall, attempt: Attempt[T]) -> T:
        """Make a call within the quota and the timeout. Cancellation of the caller aborts only reads.

        Raises:
            EngineError: the call failed; see `errors`.
        """
        bucket, seconds = self.bucket(call.api, call.place.location), self._settings.timeout_seconds
        if not await bucket.turn(min(_QUOTA_WAIT[call.repeatable], seconds / 2)):
            raise EngineUnavailable(
                f"{call.permission} is held back here, so that the project's quota in {call.place.location} lasts: "
                "ask later",
                sent=False,
                throttled=True,
            )
        attempts, context = _Attempts(deadline=time.monotonic() + seconds), self._context(call)
        token = IN_OUR_CALL.set(True)
        try:
            with anyio.move_on_after(seconds + _GRACE, shield=not call.repeatable):
                if call.repeatable:
                    async with self._reads, self._places:
                        return await self._again(call, context, attempts, attempt)
                async with self._places:
                    return await self._once(call, attempts, attempt, 1.0)
        except ReplyError as error:
            ours = translate(error.reply, context)
            self._heed(error.reply, ours, bucket, call)
            raise ours from None  # Google's text may contain the input
        finally:
            IN_OUR_CALL.reset(token)
            bucket.debit(max(0, attempts.made - 1))
        raise EngineUnavailable(f"{context.who}: no answer within {seconds:g} s", sent=attempts.made > 0)

    async def _again(self, call: ApiCall, context: CallContext, attempts: _Attempts, attempt: Attempt[T]) -> T:
        """Make a read, and repeat it after transient errors; a refused token is renewed once."""

        def may_pass(error: Exception) -> bool:
            if not isinstance(error, ReplyError) or attempts.made >= _MOST_ATTEMPTS:
                return False
            if error.reply.status == "UNAUTHENTICATED" and not attempts.renewed:
                self._credentials.forget()
                attempts.renewed = True
                return True
            return is_transient(error.reply, context)

        async def once() -> T:
            return await self._once(call, attempts, attempt, _ATTEMPT)

        retrying = AsyncRetry(predicate=may_pass, initial=0.1, maximum=1.0, multiplier=2.0, timeout=attempts.left)
        try:
            return await retrying(once)()  # pyright: ignore[reportCallIssue]  # its ParamSpec does not match a call
        except RetryError as error:
            if isinstance(error.cause, ReplyError):
                raise error.cause from None
            raise

    async def _once(self, call: ApiCall, attempts: _Attempts, attempt: Attempt[T], share: float) -> T:
        headers = await self._credentials.headers()
        attempts.made += 1
        seconds = max(attempts.left * share, min(attempts.left, 1.0))
        try:
            return await attempt(headers, seconds)
        except GoogleAPICallError as error:
            raise ReplyError(read_grpc_error(error, connected=self._clients.is_connected(call.service))) from None
        except anyio.get_cancelled_exc_class():
            await anyio.lowlevel.checkpoint()  # gRPC raises another CancelledError, unknown to anyio's cancel scopes
            raise

    def _heed(self, reply: ErrorReply, ours: EngineError, bucket: Bucket, call: ApiCall) -> None:
        """Apply the consequences of an error to later calls: drop a refused token, slow down if throttled."""
        logger.debug("%s: %s %s", call.permission, reply.status, reply.reason)
        if reply.status == "UNAUTHENTICATED":
            self._credentials.forget()
        if isinstance(ours, EngineUnavailable) and ours.throttled and bucket.throttled():
            logger.warning("Google throttles %s%s", call.permission, bucket.slowed)

    def bucket(self, api: str, location: str | None = None) -> Bucket:
        """Return the bucket of an API in a location, by default that of the settings."""
        key = QuotaKey(
            endpoint=self._settings.emulator or "google",  # all of Google's endpoints share one quota
            owner=self.project,  # as in the settings: resource names have the id or the number
            place=self._settings.location if location in {None, self._settings.location} else _ELSEWHERE,
            operation=api,
        )
        return self._buckets.bucket(key, limits(api, self.quota))

    def _context(self, call: ApiCall) -> CallContext:
        return CallContext(
            kind=call.kind,
            permission=call.permission,
            resource=call.resource,
            location=call.place.location,
            endpoint=self._clients.endpoints[call.service],
            custom=bool(self._settings.emulator or self._settings.endpoint),
            service=call.service,
        )


class Client:
    """The API of one engine, in one project and location."""

    def __init__(self, settings: GoogleSettings, buckets: Buckets = BUCKETS) -> None:
        self._settings = settings
        self._clients = GrpcClients(settings)
        self._http = HttpClient(settings)
        self._credentials = Credentials(settings)
        self._caller = ApiCaller(settings, self._clients, self._credentials, buckets)
        self._same_projects: set[frozenset[str]] = set()

    async def close(self) -> None:
        """Close all connections; running calls are aborted."""
        await self._http.close()
        await self._clients.close()

    @property
    def allowance(self) -> Allowance:
        """The current read rate of this process."""
        every = _BATCH_EVERY if self._caller.quota is None else max(_BATCH_EVERY, 1 / self.refill("list_executions"))
        return Allowance(
            polls_per_second=min(self.refill("get_execution"), _UNLIMITED_POLLS),
            batch_every=every,
            batch=_BATCH,
            burst=int(min(self._caller.bucket("get_execution").spare, _UNLIMITED_POLLS)),
        )

    @property
    def rest_url(self) -> str:
        """The base URL of the Executions API: `https://workflowexecutions.googleapis.com`."""
        return rest_url(self._settings)

    def refill(self, api: str) -> float:
        """Return this process's current calls per second of this API; infinite without a quota."""
        return self._caller.bucket(api).refill

    async def place(self) -> Place:
        """Return the project and location of the workflows; the project is looked up once.

        Raises:
            EngineError: the project is unknown.
        """
        if self._caller.project is None:
            self._caller.project = await self._credentials.project()
        return Place(project=self._caller.project, location=self._settings.location)

    async def create(self, workflow: WorkflowName, argument: str, labels: Mapping[str, str]) -> ExecutionResource:
        """Start an execution in a single attempt, which cancellation of the caller does not abort.

        Raises:
            EngineRefused: no execution was created.
            EngineUnavailable: if `sent`, one may have been created.
        """
        call = _of_workflow(CallKind.CREATE, "write_executions", "workflows.executions.create", workflow)
        execution = executions_v1.Execution(argument=argument, labels=dict(labels))
        request = executions_v1.CreateExecutionRequest(parent=workflow.name, execution=execution)
        return read_execution(await self._caller.send(call, "create_execution", request))

    async def get(self, name: ExecutionName, *, full: bool) -> ExecutionResource:
        """Get an execution.

        Raises:
            ExecutionNotFound, EngineError: see `errors`.
        """
        call = _of_execution(CallKind.DESCRIBE, "get_execution", "workflows.executions.get", name)
        request = executions_v1.GetExecutionRequest(name=name.name, view=_view(full))
        return read_execution(await self._caller.send(call, "get_execution", request))

    async def executions(
        self,
        workflow: WorkflowName,
        *,
        only: str = "",
        order: str = "",
        full: bool = False,
        limit: int | None = None,
        since: datetime | None = None,
    ) -> Sequence[ExecutionResource]:
        """Return executions of a workflow that match the filter `only`; each page is one call.

        The newest are first unless `order` names another field.

        With `since`, the list ends at the first execution that started earlier; queued ones have no start yet.

        Raises:
            EngineError: see `errors`.
        """
        call = _of_workflow(CallKind.READ, "list_executions", "workflows.executions.list", workflow)
        size = min(FULL_PAGE if full else BASIC_PAGE, limit or BASIC_PAGE)
        request = executions_v1.ListExecutionsRequest(
            parent=workflow.name, view=_view(full), page_size=size, filter=only, order_by=order
        )

        def is_recent(row: ExecutionResource) -> bool:
            return since is None or row.start_time is None or row.start_time >= since

        found: list[ExecutionResource] = []
        while True:
            reply = await self._caller.send(call, "list_executions", request)
            recent = list(takewhile(is_recent, map(read_execution, reply.executions)))
            found += recent
            request.page_token = reply.next_page_token
            is_enough = len(recent) < len(reply.executions) or (limit is not None and len(found) >= limit)
            if is_enough or not request.page_token:
                return found[:limit]

    async def cancel(self, name: ExecutionName) -> None:
        """Cancel an execution; do nothing if it has ended. Cancellation of the caller does not abort the call.

        Raises:
            ExecutionNotFound, EngineError: see `errors`.
        """
        call = _of_execution(CallKind.CANCEL, "write_executions", "workflows.executions.cancel", name)
        request = executions_v1.CancelExecutionRequest(name=name.name)

        async def attempt(headers: Mapping[str, str], seconds: float) -> None:
            with suppress(FailedPrecondition):  # it had ended
                await self._clients.send(EXECUTIONS, "cancel_execution", request, headers, seconds)

        await self._caller.make(call, attempt)

    async def callbacks(self, name: ExecutionName) -> Sequence[Callback]:
        """Return the open callbacks of an execution.

        Raises:
            ExecutionNotFound, EngineError: see `errors`.
        """
        call = _of_execution(CallKind.DESCRIBE, "list_callbacks", "workflows.callbacks.list", name)
        params = {"pageSize": str(_CALLBACKS_PAGE)}

        async def attempt(headers: Mapping[str, str], seconds: float) -> Any:  # Any: JSON
            return await self._http.get(f"/v1/{name.name}/callbacks", params, headers, seconds)

        found: list[Callback] = []
        while True:
            reply = await self._caller.make(call, attempt)
            rows: Any = reply.get("callbacks", [])
            found += filter(None, map(read_callback, rows if isinstance(rows, list) else ()))  # pyright: ignore[reportUnknownArgumentType]
            params["pageToken"] = str(reply.get("nextPageToken", ""))
            if not params["pageToken"]:
                return found

    async def deliver(self, url: str, method: str, body: JSON) -> DeliveryOutcome:
        """Send an answer to a callback once. The caller has validated the URL, which appears in no message.

        Raises:
            EngineError: it was certainly not delivered; `EngineUnavailable` has `sent=False`.
        """
        found = _CALLBACK.search(url)
        if found is None:
            raise EngineRefused("this is not a callback URL: nothing is sent there")
        name = ExecutionName.parse(found["execution"])
        call = _of_execution(CallKind.SEND, "send_callback", "workflows.callbacks.send", name)

        async def attempt(headers: Mapping[str, str], seconds: float) -> DeliveryOutcome:
            return await self._http.deliver(url, method, body, headers, seconds)

        try:
            return await self._caller.make(call, attempt)
        except EngineUnavailable as error:
            if not error.sent or error.throttled:
                raise
            return DeliveryOutcome.UNKNOWN

    async def workflow(self, name: WorkflowName) -> WorkflowResource:
        """Get a workflow with its source.

        Raises:
            EngineRefused: there is no workflow of that name.
            EngineError: see `errors`.
        """
        call = _of_workflows("workflows.workflows.get", name.name, name.place)
        request = workflows_v1.GetWorkflowRequest(name=name.name)
        return read_workflow(await self._caller.send(call, "get_workflow", request))

    async def workflows(self) -> Sequence[WorkflowResource]:
        """Return the workflows of this place. Google decides whether the list includes their sources.

        Raises:
            EngineError: see `errors`.
        """
        place = await self.place()
        call = _of_workflows("workflows.workflows.list", place.name, place)
        request = workflows_v1.ListWorkflowsRequest(parent=place.name, page_size=_WORKFLOWS_PAGE)
        found: list[WorkflowResource] = []
        while True:
            reply = await self._caller.send(call, "list_workflows", request)
            found += map(read_workflow, reply.workflows)
            request.page_token = reply.next_page_token
            if not request.page_token:
                return found

    async def is_in_project(self, name: ExecutionName, project: str) -> bool:
        """Return whether this execution is in that project: each project has an id and a number, and Google uses both.

        Google is asked for the execution under both names; Google generates the ids of executions, so no id exists in
        two projects and nobody can forge one. Matching pairs are remembered.

        Raises:
            EngineUnavailable: Google does not answer.
        """
        ours = name.workflow.place.project
        pair = frozenset({ours, project})
        if len(pair) == 1 or pair in self._same_projects:
            return True
        for each in (ours, project):
            try:
                await self.get(name.in_project(each), full=False)
            except (ExecutionNotFound, EngineRefused):
                return False
        if len(self._same_projects) < _MOST_PAIRS:
            self._same_projects.add(pair)
        return True

    async def claim_key(self, name: ExecutionName, key: str) -> str:
        """Return the name under which an execution claims its key, which is valid only in its own workflow.

        Anybody can set the label in another project. With the workflow in the name, such an execution cannot obtain a
        task.

        Raises:
            EngineUnavailable: Google does not answer.
        """
        place = await self.place()
        if await self.is_in_project(name, place.project):
            name = name.in_project(place.project)
        return f"{name.workflow.name}/{key}"


def _view(full: bool) -> executions_v1.ExecutionView:
    views = executions_v1.ExecutionView
    return views(views.FULL if full else views.BASIC)


def _of_execution(kind: CallKind, api: str, permission: str, name: ExecutionName) -> ApiCall:
    return ApiCall(kind=kind, api=api, permission=permission, resource=name.name, place=name.workflow.place)


def _of_workflow(kind: CallKind, api: str, permission: str, name: WorkflowName) -> ApiCall:
    return ApiCall(kind=kind, api=api, permission=permission, resource=name.name, place=name.place)


def _of_workflows(permission: str, resource: str, place: Place) -> ApiCall:
    kind, api = CallKind.READ, "read_workflows"
    return ApiCall(kind=kind, api=api, permission=permission, resource=resource, place=place, service=WORKFLOWS)


@asynccontextmanager
async def open_client(settings: GoogleSettings) -> AsyncGenerator[Client]:
    """Open the client of an engine; the first call connects and reads credentials."""
    client = Client(settings)
    try:
        yield client
    finally:
        with anyio.CancelScope(shield=True):
            await client.close()
