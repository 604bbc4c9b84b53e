"""The boto3 clients of an engine, created from its settings in a thread, without any call."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false
# Reason: botocore has no types; its values are Any, and are converted to our types at once.

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final
from urllib.parse import urlsplit

import boto3
import botocore.session
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    InvalidRegionError,
    NoRegionError,
    ProfileNotFound,
    ProxyConnectionError,
)
from botocore.loaders import create_loader
from botocore.parsers import ResponseParserError

from mcp_workflows.errors import ConfigError
from mcp_workflows_stepfunctions.credentials import (
    CallerCredentials,
    FixedCredentials,
    LazyCredentials,
    role_credentials,
)
from mcp_workflows_stepfunctions.settings import StepFunctionsSettings

CONNECT_TIMEOUT: Final = 3.0  # seconds
ATTEMPTS: Final = 3
SYNC_TIMEOUT: Final = 310.0  # seconds: an Express execution lasts 300 at most
QUEUE_TIMEOUT: Final = 25.0  # seconds: SQS answers after 20 at most
SYNC_CONNECTIONS: Final = 64  # each Express execution holds one until it ends
QUEUE_CONNECTIONS: Final = 4
_DOMAINS: Final = (  # of AWS's partitions, as in botocore's partitions.json: dnsSuffix, dualStackDnsSuffix
    *("amazonaws.com", "api.aws"),
    *("amazonaws.com.cn", "api.amazonwebservices.com.cn"),
    *("amazonaws.eu", "api.amazonwebservices.eu"),
    *("c2s.ic.gov", "api.aws.ic.gov", "sc2s.sgov.gov", "api.aws.scloud"),
    *("cloud.adc-e.uk", "api.cloud-aws.adc-e.uk", "csp.hci.ic.gov", "api.aws.hci.ic.gov"),
)
_AWS: Final = rf"({'|'.join(map(re.escape, _DOMAINS))})"
_SECRETS = re.compile(r"\S*@")  # in a URL, before the host
_AWS_HOST = re.compile(rf"\.{_AWS}$")
_OWN_HOST = re.compile(rf"^states(-fips)?\.[a-z0-9-]+\.{_AWS}$")
_VPC_HOST = re.compile(rf"\.states\.[a-z0-9-]+\.vpce\.{_AWS}$")
_QUEUE_REGION = re.compile(r"^(?:sqs\.(?P<new>[a-z0-9-]+)|(?P<old>[a-z0-9-]+)\.queue)\.(amazonaws\.com|api\.aws)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Boto3Clients:
    """The clients of one engine. Any: botocore creates their methods at run time, and has no types."""

    states: Any
    sync: Any  # for StartSyncExecution, which waits for minutes, and is never retried
    sts: Any
    queue: Any | None
    tagging: Any | None
    region: str
    partition: str
    endpoint: str
    credentials: LazyCredentials

    @property
    def endpoint_is_custom(self) -> bool:
        """True if the endpoint is not AWS's, but a local engine or a stub."""
        return not _AWS_HOST.search(urlsplit(self.endpoint).hostname or "")

    def close(self) -> None:
        """Close their connections."""
        for client in filter(None, (self.states, self.sync, self.sts, self.queue, self.tagging)):
            client.close()


def open_boto3_clients(settings: StepFunctionsSettings) -> Boto3Clients:
    """Create all clients. This takes up to a second and reads files, but makes no call.

    Raises:
        ConfigError: there is no Region or no such profile, or AWS's configuration files cannot be read.
    """
    silence_botocore()
    try:
        return _clients(settings)
    except NoRegionError:
        ignored = "; AWS_REGION is set, but boto3 does not read it" if os.environ.get("AWS_REGION") else ""
        text = f"no Region: set region of this engine, or AWS_DEFAULT_REGION, or one in the profile{ignored}"
        raise ConfigError(text) from None
    except ProfileNotFound as error:
        where = "profile of this engine" if settings.profile else "AWS_PROFILE"
        there = ", ".join(botocore.session.Session().available_profiles) or "none"
        raise ConfigError(f"{where}: {error}; there are: {there}") from None
    except InvalidRegionError:
        raise ConfigError("what AWS_DEFAULT_REGION or the profile names is no Region: set region, eu-west-1") from None
    except (BotoCoreError, ValueError) as error:
        raise ConfigError(f"boto3's own configuration: {_SECRETS.sub('***@', str(error))}") from None


def _clients(settings: StepFunctionsSettings) -> Boto3Clients:
    core = botocore.session.get_session()
    core.register_component("data_loader", _models(core.get_config_variable("data_path")))
    session = boto3.Session(botocore_session=core, profile_name=settings.profile, region_name=settings.region)
    own = LazyCredentials(core.get_component("credential_provider"))
    used = own
    if (
        role := settings.assume_role
    ):  # a session of the role for all, and one for each caller given by `source_identity`
        endpoint, config = _endpoint(settings, "sts"), _config(settings, attempts=2)
        sts = partial(core.create_client, region_name=settings.region, endpoint_url=endpoint, config=config)
        used = CallerCredentials(
            role_credentials(role, own, sts), lambda caller: role_credentials(role.on_behalf_of(caller), own, sts)
        )
    core.register_component("credential_provider", FixedCredentials(credentials=used))
    make = partial(_client, session, settings)
    states = make("stepfunctions", _config(settings))
    if urlsplit(states.meta.endpoint_url).port == 0:  # a port out of range raises ValueError here
        raise ValueError("the URL of the endpoint has port 0")
    return Boto3Clients(
        states=track_attempts(states),
        sync=track_attempts(_sync(make, urlsplit(states.meta.endpoint_url).hostname or "")),
        sts=track_attempts(make("sts", _config(settings))),
        queue=track_attempts(_queue(settings, make)) if settings.events else None,
        tagging=track_attempts(make("resourcegroupstaggingapi", _config(settings))) if settings.discover else None,
        region=states.meta.region_name,
        partition=states.meta.partition,
        endpoint=shown(states.meta.endpoint_url),
        credentials=own,
    )


def _sync(make: Callable[..., Any], host: str) -> Any:  # Any: see Clients
    """Create the client for StartSyncExecution, which has a separate host on AWS: `sync-states...`.

    In a VPC, its endpoint is not that of Step Functions, so a configured endpoint of Step Functions cannot serve it.
    Source: https://docs.aws.amazon.com/step-functions/latest/dg/vpc-endpoints.html
    """
    plain = _options(SYNC_TIMEOUT, SYNC_CONNECTIONS)
    if _VPC_HOST.search(host):
        return make("stepfunctions", Config(**plain, ignore_configured_endpoint_urls=True), endpoint_url=None)
    return make("stepfunctions", Config(**plain, inject_host_prefix=bool(_OWN_HOST.match(host))))


@cache
def _models(path: str | None) -> Any:  # Any: botocore's Loader
    """Return AWS's models of its APIs, read once for all engines of this process."""
    return create_loader(path)


def _queue(settings: StepFunctionsSettings, make: Callable[..., Any]) -> Any:  # Any: see Clients
    """Create the client of the queue, whose URL names the Region or a host outside AWS."""
    url = urlsplit(settings.events.queue_url if settings.events else "")
    config = Config(**_options(QUEUE_TIMEOUT, QUEUE_CONNECTIONS))
    if found := _QUEUE_REGION.match(url.hostname or ""):
        return make("sqs", config, region_name=found["new"] or found["old"])
    return make("sqs", config, endpoint_url=f"{url.scheme}://{url.netloc}")


def _client(
    session: boto3.Session, settings: StepFunctionsSettings, service: str, config: Config, **other: str | None
) -> Any:  # Any: see Clients
    where: dict[str, Any] = {"region_name": settings.region, "endpoint_url": _endpoint(settings, service), **other}
    return session.client(service, config=config, **where)


def _endpoint(settings: StepFunctionsSettings, service: str) -> str | None:
    """Return the endpoint for a service: each of AWS's endpoints serves one service, a local engine serves all."""
    host = urlsplit(settings.endpoint_url or "").hostname or ""
    return None if service != "stepfunctions" and _AWS_HOST.search(host) else settings.endpoint_url


def shown(url: str) -> str:
    """Return an endpoint without credentials, which one from the environment may contain, for messages."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def attempt_seconds(timeout_seconds: float) -> float:
    """Return the time limit of one attempt, in seconds, which leaves time for another attempt."""
    return max(0.5, timeout_seconds * 0.4)


def _config(settings: StepFunctionsSettings, attempts: int = ATTEMPTS) -> Config:
    read = attempt_seconds(settings.timeout_seconds)
    return Config(**_options(read, settings.max_connections, attempts))


def _options(
    read_timeout: float, connections: int, attempts: int = 1
) -> Mapping[str, Any]:  # Any: as Config takes them
    return {
        "connect_timeout": min(CONNECT_TIMEOUT, read_timeout),
        "read_timeout": read_timeout,
        "max_pool_connections": connections,
        "retries": {"mode": "standard", "total_max_attempts": attempts},
        "tcp_keepalive": True,
        "user_agent_extra": "mcp-workflows",
    }


NOT_SENT: Final = (EndpointConnectionError, ConnectTimeoutError, ProxyConnectionError)
THROTTLING: Final = frozenset(
    {"ThrottlingException", "Throttling", "ThrottledException", "RequestThrottledException", "RequestThrottled"}
    | {"TooManyRequestsException", "RequestLimitExceeded", "BandwidthLimitExceeded", "LimitExceededException"}
    | {"SlowDown", "PriorRequestNotComplete", "TransactionInProgressException", "KmsThrottlingException"}
    | {"ProvisionedThroughputExceededException", "EC2ThrottledException"}
)
_SERVER_ERROR: Final = 500
_PAUSE: Final = 0.2  # seconds: the longest pause after an attempt that was not throttled
_VERBOSE_LOGGERS: Final = (  # at DEBUG they log requests and answers: task tokens, inputs, signatures
    *("botocore.endpoint", "botocore.parsers", "botocore.auth", "botocore.hooks", "botocore.httpsession"),
    *("botocore.client", "botocore.awsrequest", "botocore.regions", "botocore.retries.standard"),
)
_TRACEBACK_LOGGERS: Final = ("botocore.credentials", "botocore.tokens")  # at WARNING, with a stack trace each time


@dataclass(slots=True, kw_only=True)
class Attempts:
    """The attempts of one call, in the thread that makes it."""

    deadline: float  # of `time.monotonic`: no attempt starts that could end later
    longest: float  # maximum seconds of one attempt
    made: int = 0
    answered: int = 0
    unsent: int = 0
    throttled: int = 0

    def count(self) -> None:
        """Count an attempt that begins."""
        self.made += 1

    def record_outcome(self, status: int, code: str | None, error: Exception | None) -> None:
        """Record the end of an attempt: an answer with its HTTP status and AWS's code, or an exception."""
        self.answered += error is None and status < _SERVER_ERROR  # after a server error, AWS may have done it
        self.unsent += isinstance(error, NOT_SENT)
        self.throttled += code in THROTTLING

    @property
    def reached(self) -> bool:
        """True if an attempt may have reached the engine."""
        return self.made > self.unsent

    @property
    def is_in_doubt(self) -> bool:
        """True if an attempt may have reached the engine and its outcome is unknown."""
        return self.made > self.unsent + self.answered

    def is_too_late(self, code: str | None) -> bool:
        """Return True if no time is left for another attempt after botocore's longest pause."""
        pause = 2.0 ** (self.made - 1) if code in THROTTLING else _PAUSE
        return time.monotonic() + pause + self.longest > self.deadline


CURRENT: ContextVar[Attempts | None] = ContextVar("mcp_workflows_stepfunctions_attempts", default=None)


def track_attempts(client: Any) -> Any:  # Any: a botocore client has no types
    """Return the same client, which now reports its attempts to the `CURRENT` call."""
    client.meta.events.register_first("before-send", _before_send)
    client.meta.events.register_first("needs-retry", _needs_retry)
    return client


def send(client: Any, operation: str, params: Mapping[str, Any], attempts: Attempts) -> Mapping[str, Any]:
    """Make the call in this thread. Any: as boto3 takes and returns them.

    Raises:
        Exception: those of `errors.FOREIGN`.
    """
    CURRENT.set(attempts)
    call = getattr(client, operation)
    try:
        reply: Mapping[str, Any] = call(**params)
    except (AttributeError, TypeError, LookupError, RecursionError):
        raise ResponseParserError from None  # JSON, but no answer of AWS: boto3 fails in many ways
    shape = client.meta.service_model.operation_model(client.meta.method_to_api_mapping[operation]).output_shape
    expected: Collection[str] = shape.required_members if shape else ()
    if expected and not any(member in reply for member in expected):
        raise ResponseParserError  # 200 from a server that is not AWS: boto3 accepts it
    return reply


def _before_send(**_: Any) -> None:
    if attempts := CURRENT.get():
        attempts.count()


def _needs_retry(
    response: Any, caught_exception: Exception | None, operation: Any, **_: Any
) -> None:  # Any: as botocore emits it
    attempts = CURRENT.get()
    if attempts is None:
        return
    answer = response[1] if response else {}
    code = answer["Error"].get("Code") if "Error" in answer else None
    attempts.record_outcome(response[0].status_code if response else 0, code, caught_exception)
    if not attempts.is_too_late(code):
        return
    if caught_exception is not None:
        raise caught_exception
    if code is not None:
        raise ClientError(answer, operation.name)


class _NotOurCalls(logging.Filter):
    """A log filter that drops debug lines of our calls."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno > logging.DEBUG or CURRENT.get() is None


_NOT_OUR_CALLS: Final = _NotOurCalls()


def _without_trace(record: logging.LogRecord) -> bool:
    """Drop the stack trace of a missing credential: the error of our call gives the reason."""
    if CURRENT.get() is not None:
        record.exc_info = None
    return True


def silence_botocore() -> None:
    """Keep requests, answers and stack traces of our calls, which contain task tokens, out of botocore's log."""
    for name in _VERBOSE_LOGGERS:
        logging.getLogger(name).addFilter(_NOT_OUR_CALLS)
    for name in _TRACEBACK_LOGGERS:
        logging.getLogger(name).addFilter(_without_trace)
