"""The calls to AWS: each runs in a thread, has a time limit, respects the quotas, and raises only our errors."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite
from typing import Any, Final

import anyio

from mcp_workflows.adapter import Allowance
from mcp_workflows.adapter.capabilities import replica_count
from mcp_workflows.errors import EngineRefused, EngineUnavailable
from mcp_workflows.kit.threads import BlockingCall, begin_call
from mcp_workflows.kit.token_bucket import BUCKETS, UNLIMITED, Bucket, BucketLimits, Buckets, QuotaKey
from mcp_workflows_stepfunctions.arns import Place
from mcp_workflows_stepfunctions.boto3_clients import (
    CONNECT_TIMEOUT,
    QUEUE_CONNECTIONS,
    QUEUE_TIMEOUT,
    SYNC_CONNECTIONS,
    SYNC_TIMEOUT,
    Attempts,
    Boto3Clients,
    attempt_seconds,
    open_boto3_clients,
    send,
    shown,
)
from mcp_workflows_stepfunctions.credentials import acting_as
from mcp_workflows_stepfunctions.errors import (
    FOREIGN,
    STALE,
    ApiCall,
    code_of,
    is_foreign,
    request_of,
    translate,
)
from mcp_workflows_stepfunctions.settings import Quota, Rate, StepFunctionsSettings

logger = logging.getLogger(__name__)

READS: Final = ("describe_", "get_", "list_", "receive_")
_PATIENCE: Final = {True: 1.0, False: 4.0}  # seconds that a read (True) or a write (False) waits for a token
_FOR_WRITES: Final = 4  # one place in four is reserved for writes: slow polls never delay an answer or a cancellation
_WRITE_GRACE: Final = 1.0  # seconds: a write is abandoned shortly after its thread should have ended
_RESOURCES: Final = ("executionArn", "stateMachineArn", "stateMachineAliasArn", "resourceArn", "QueueUrl")
_DESCRIBE_OPERATIONS: Final = ("describe_execution", "get_execution_history")
_LISTING_INTERVAL: Final = 2.0  # seconds
_BATCH: Final = 10_000  # executions: 10 lists
_UNLIMITED_DESCRIBES: Final = 50.0  # per second, without a known quota


class ExpectedCodeError(Exception):
    """The engine answered with an error code that the caller expects."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class _CallKind:
    """The client and the limits of a kind of call."""

    service: str
    client: Any  # a botocore client has no types
    limiter: anyio.CapacityLimiter
    reads: anyio.CapacityLimiter | None = None  # the places of `limiter` for reads
    seconds: float  # total
    attempt: float  # seconds of one attempt
    long: bool = False


def _long_call(service: str, client: Any, connections: int, seconds: float) -> _CallKind:  # Any: see `_CallKind`
    """Return the kind of calls that are long by nature."""
    limiter = anyio.CapacityLimiter(connections)
    return _CallKind(
        service=service, client=client, limiter=limiter, seconds=seconds + CONNECT_TIMEOUT, attempt=seconds, long=True
    )


class Client:
    """The API of one engine: one account in one Region."""

    def __init__(self, clients: Boto3Clients, settings: StepFunctionsSettings, buckets: Buckets = BUCKETS) -> None:
        self._clients = clients
        self._buckets = buckets
        self.region = clients.region
        self.partition = clients.partition
        self.endpoint = clients.endpoint
        self.endpoint_is_custom = clients.endpoint_is_custom
        self.account = settings.known_account  # None until a reply contains it
        self._role = settings.assume_role.arn if settings.assume_role else None
        self._quota = settings.quota or (None if clients.endpoint_is_custom else Quota())
        self._identity_lock = anyio.Lock()
        seconds, attempt = settings.timeout_seconds, attempt_seconds(settings.timeout_seconds)
        places = settings.max_connections
        self._states = _CallKind(
            service="states",
            client=clients.states,
            limiter=anyio.CapacityLimiter(places),
            reads=anyio.CapacityLimiter(places - places // _FOR_WRITES),
            seconds=seconds,
            attempt=attempt,
        )
        self._sts = replace(self._states, service="sts", client=clients.sts)
        self._tagging = replace(self._states, service="tag", client=clients.tagging)
        self._sync = _long_call("states", clients.sync, SYNC_CONNECTIONS, SYNC_TIMEOUT)
        self._queue = _long_call("sqs", clients.queue, QUEUE_CONNECTIONS, QUEUE_TIMEOUT)

    @property
    def allowance(self) -> Allowance:
        """The rate of polls of this process now; a poll of a running execution makes two calls, and the scarcer
        counts."""
        polls = min(map(self.refill, _DESCRIBE_OPERATIONS))
        every = _LISTING_INTERVAL if self._quota is None else max(_LISTING_INTERVAL, 1 / self.refill("list_executions"))
        spare = min(self._bucket(operation).spare for operation in _DESCRIBE_OPERATIONS)
        return Allowance(
            polls_per_second=_known(polls),
            batch_every=every,
            batch=_BATCH,
            burst=int(_known(spare)),
        )

    def refill(self, operation: str) -> float:
        """Return this process's current calls per second of an operation; infinite without a known quota."""
        return self._bucket(operation).refill

    async def place(self) -> Place:
        """Return the place of machines given by name; AWS STS is called once, unless the settings have the account.

        Raises:
            EngineError: the account cannot be determined.
        """
        async with self._identity_lock:
            if self.account is None:
                reply = await self._make(self._sts, "get_caller_identity", {}, known=())
                self.account = str(reply["Account"])
        return Place(partition=self.partition, region=self.region, account=self.account)

    async def call(
        self, operation: str, *, known: Collection[str] = (), caller: str | None = None, **params: Any
    ) -> Mapping[str, Any]:
        """Make a call within `timeout_seconds`, on behalf of `caller` if given. Any: as boto3 takes and returns them.

        Raises:
            ExpectedCodeError: AWS answered with one of the `known` codes.
            EngineError: see `error_table`.
        """
        with acting_as(caller):
            return await self._make(self._states, operation, params, known=known)

    async def pages(
        self,
        operation: str,
        result_key: str,
        *,
        limit: int | None = None,
        enough: Callable[[Mapping[str, Any]], bool] = lambda _: False,
        known: Collection[str] = (),
        **params: Any,
    ) -> Sequence[Mapping[str, Any]]:
        """Return the rows of all pages, or the first `limit` rows; each page is a separate call.

        A page with a row for which `enough` is true is the last one.

        Raises:
            ExpectedCodeError, EngineError: see `call`.
        """
        found: list[Mapping[str, Any]] = []
        while True:
            page = await self.call(operation, known=known, **params)
            found += page[result_key]
            token = page.get("nextToken")
            if not token or (limit is not None and len(found) >= limit) or any(map(enough, page[result_key])):
                return found[:limit]
            params["nextToken"] = token

    async def run_sync(self, *, caller: str | None = None, **params: Any) -> Mapping[str, Any]:
        """Run an Express execution and wait for its end, up to some minutes; it is never retried.

        Raises:
            EngineError: see `call`; after an `EngineUnavailable` with `sent` the outcome stays unknown.
        """
        with acting_as(caller):
            return await self._make(self._sync, "start_sync_execution", params, known=())

    async def queue(self, operation: str, **params: Any) -> Mapping[str, Any]:
        """Call SQS on separate connections; `receive_message` waits for up to 20 s.

        Raises:
            EngineError: see `call`.
        """
        return await self._make(self._queue, operation, params, known=())

    async def tagging(self, operation: str, **params: Any) -> Mapping[str, Any]:
        """Call the Resource Groups Tagging API.

        Raises:
            EngineError: see `call`.
        """
        return await self._make(self._tagging, operation, params, known=())

    async def _make(
        self, kind: _CallKind, operation: str, params: Mapping[str, Any], *, known: Collection[str]
    ) -> Mapping[str, Any]:
        deadline = time.monotonic() + kind.seconds
        read = operation.startswith(READS)
        bucket = self._bucket(operation)
        await self._wait_for_quota(bucket, operation, min(_PATIENCE[read], kind.seconds / 2))
        attempts = Attempts(deadline=deadline, longest=kind.attempt)
        call = self._api_call(kind, operation, params)
        try:
            reply = await self._bounded(kind, call, attempts, partial(send, kind.client, operation, params, attempts))
        except FOREIGN as error:
            if not is_foreign(error):
                raise
            code = code_of(error) or ""
            logger.debug("%s: %s, request %s", operation, code or type(error).__name__, request_of(error))
            if code in known:
                raise ExpectedCodeError(code) from None
            if code in STALE:
                self._clients.credentials.forget()
            ours = translate(error, call, reached=attempts.reached)
            if attempts.is_in_doubt and isinstance(ours, EngineRefused) and not (ours.final or read):
                ours = EngineUnavailable(str(ours))  # an earlier attempt may have been accepted
            raise ours from None  # AWS's message may contain a task token, so it is not logged
        finally:
            _charge(bucket, operation, attempts)
        self.account = self.account or call.account_in(self.region)
        return reply

    async def _bounded(
        self, kind: _CallKind, call: ApiCall, attempts: Attempts, work: Callable[[], Mapping[str, Any]]
    ) -> Mapping[str, Any]:
        """Run the call in a thread, which is abandoned after the time limit; a write cannot be cancelled earlier."""
        read = call.operation.startswith(READS)
        left = attempts.deadline - time.monotonic() + (0.0 if read else _WRITE_GRACE)
        with anyio.move_on_after(left, shield=not (read or kind.long)):
            if kind.long:
                async with kind.limiter:  # a cancelled call returns its place at once, as its thread may take minutes
                    return await BlockingCall(work, errors=FOREIGN).outcome()
            limiters = [kind.reads, kind.limiter] if read and kind.reads else [kind.limiter]
            return await (await begin_call(work, *limiters, errors=FOREIGN)).outcome()
        raise EngineUnavailable(f"{call.engine_name}: no answer within {kind.seconds:g} s", sent=attempts.reached)

    async def _wait_for_quota(self, bucket: Bucket, operation: str, time_limit: float) -> None:
        """Wait briefly for a token of the quota."""
        if not await bucket.turn(time_limit):
            raise EngineUnavailable(
                f"{operation} is held back here, so that the quota of the account in {self.region} lasts: ask later",
                sent=False,
                throttled=True,
            )

    def _bucket(self, operation: str) -> Bucket:
        where = self.endpoint if self.endpoint_is_custom else self.partition  # AWS has several endpoints for one quota
        key = QuotaKey(endpoint=where, owner=self.account, place=self.region, operation=operation)
        return self._buckets.bucket(key, limits(operation, self.region, self._quota))

    def _api_call(self, kind: _CallKind, operation: str, params: Mapping[str, Any]) -> ApiCall:
        return ApiCall(
            service=kind.service,
            operation=operation,
            resource=next((str(params[name]) for name in _RESOURCES if name in params), None),
            region=kind.client.meta.region_name,
            account=self.account,
            endpoint=shown(kind.client.meta.endpoint_url),
            role=self._role,
            custom=self.endpoint_is_custom,
        )


@asynccontextmanager
async def open_client(settings: StepFunctionsSettings) -> AsyncGenerator[Client]:
    """Open the client of an engine; its boto3 clients are created in a thread, and closed at the end.

    Raises:
        ConfigError: the clients cannot be created.
    """
    clients = await anyio.to_thread.run_sync(open_boto3_clients, settings)
    try:
        yield Client(clients, settings)
    finally:
        clients.close()


def _charge(bucket: Bucket, operation: str, attempts: Attempts) -> None:
    """Charge tokens for botocore's attempts after the first."""
    if attempts.made > 1:
        bucket.debit(attempts.made - 1)
    if attempts.throttled and bucket.throttled():
        logger.warning("AWS throttles %s%s", operation, bucket.slowed)


_WELL_SERVED: Final = frozenset({"us-east-1", "us-west-2", "eu-west-1"})


def _limits(bucket: float, refill: float) -> BucketLimits:
    return BucketLimits(bucket=bucket, refill=refill)


# operation: (in AWS's largest Regions, elsewhere)
DEFAULTS: Final[Mapping[str, tuple[BucketLimits, BucketLimits]]] = {
    "start_execution": (_limits(1300, 300), _limits(800, 150)),
    "describe_execution": (_limits(300, 15), _limits(250, 10)),
    "get_execution_history": (_limits(400, 20), _limits(400, 20)),
    "list_executions": (_limits(200, 5), _limits(100, 2)),
    "stop_execution": (_limits(1000, 200), _limits(500, 25)),
    "send_task_success": (_limits(3000, 500), _limits(1500, 300)),
    "send_task_failure": (_limits(3000, 500), _limits(1500, 300)),
    "describe_state_machine": (_limits(200, 20), _limits(200, 20)),
    "describe_state_machine_alias": (_limits(200, 1), _limits(200, 1)),
    "describe_state_machine_for_execution": (_limits(200, 1), _limits(200, 1)),
    "list_state_machines": (_limits(100, 5), _limits(100, 5)),
    "get_resources": (_limits(10, 5), _limits(10, 5)),  # of tags: 15/s; AWS names no bucket
}
_OVERRIDES: Final[Mapping[str, str]] = {"send_task_success": "send_task", "send_task_failure": "send_task"}


def limits(operation: str, region: str, quota: Quota | None) -> BucketLimits:
    """Return the share of this process in the quota of an operation; no limit if `quota` is None."""
    if quota is None or operation not in DEFAULTS:
        return UNLIMITED
    big, small = DEFAULTS[operation]
    whole: BucketLimits | Rate = big if region in _WELL_SERVED else small
    whole = getattr(quota, _OVERRIDES.get(operation, operation), None) or whole
    share = quota.share / replica_count(quota.replicas)
    return BucketLimits(bucket=max(1.0, whole.bucket * share), refill=whole.refill * share)


def _known(describes: float) -> float:
    """Return this number, or the default without a known quota."""
    return describes if isfinite(describes) else _UNLIMITED_DESCRIBES
