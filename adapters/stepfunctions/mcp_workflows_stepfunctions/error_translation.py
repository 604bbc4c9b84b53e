"""Translation of AWS's and boto3's errors by `error_table`, repeating only harmless parts of their messages."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false
# Reason: botocore has no types; what comes from it is Any, and is turned into types of our own at once.

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from botocore import exceptions as boto
from botocore.parsers import ResponseParserError

from mcp_workflows.errors import EngineError, EngineRefused, EngineUnavailable
from mcp_workflows_stepfunctions.error_table import (
    CODES,
    DOWN,
    EXCEPTIONS,
    MESSAGE_SIGNS,
    NOT_IT,
    OPERATION_CODES,
    ErrorRow,
    outage,
    refusal,
)

FOREIGN: Final = (boto.ClientError, boto.BotoCoreError, ResponseParserError, OSError, RuntimeError)
"""All exceptions of a call of botocore; of `RuntimeError`s one only: see `is_foreign`."""

STALE: Final = frozenset(
    {"ExpiredTokenException", "ExpiredToken", "UnrecognizedClientException", "InvalidClientTokenId"}
)
"""Codes of credentials that may have been renewed in their file meanwhile."""

_EXPIRED_ANYWAY: Final = "still expired"  # botocore's RuntimeError: even new credentials have expired
SERVER_ERROR: Final = 500
_REFUSED: Final = "Connection refused"  # the C library's message, inside botocore's error
_LOCAL: Final = "mcp_workflows_stepfunctions_local"
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
MAX_WORD: Final = 200  # characters of a repeated text


_SERVICES: Final[Mapping[str, str]] = {
    "states": "Step Functions",
    "sts": "AWS STS",
    "sqs": "SQS",
    "tag": "the AWS tagging API",
}
_ARN = re.compile(r"arn:[a-z-]+:states:(?P<region>[a-z0-9-]+):(?P<account>\d{12}):")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCall:
    """The call that failed, and the engine it went to."""

    service: str  # as IAM names it
    operation: str  # as boto3 calls it
    resource: str | None  # an ARN or a URL from the request; never the rest of it
    region: str
    account: str | None
    endpoint: str
    role: str | None = None  # the role to assume
    custom: bool = False  # True: the endpoint is not AWS's

    @property
    def engine_name(self) -> str:
        """The name of the engine in messages."""
        name = _SERVICES[self.service]
        return f"{name} at {self.endpoint}" if self.custom else f"{name} in {self.region}"

    def account_in(self, region: str) -> str | None:
        """Return the account of the call's ARN, if the ARN is of this Region."""
        found = _ARN.match(self.resource or "")
        return found["account"] if found and found["region"] == region else None


_PLACED: Final = frozenset({"InvalidArn", "StateMachineDoesNotExist", "ExecutionDoesNotExist", "ResourceNotFound"})
"""Codes that AWS also returns for resources of another Region or account."""

_PERFORM = re.compile(r"not authorized to perform: (?P<action>[a-z0-9-]+:\w+)(?: on resource: (?P<resource>[^\s,]+))?")
_BECAUSE = re.compile(
    r"(?:with an explicit deny in|because no) an? ?(?P<policy>[a-z -]+?) policy|because no (?P<none>[a-z -]+?) policy"
)
_RULE = re.compile(r"at '(?P<member>\w+)' failed to satisfy constraint: (?P<rule>[^;]{1,200})")
_PARAMETER = re.compile(r'parameter (?:in input: )?"?(?P<name>[A-Za-z0-9_.\[\]]+)')
_CODE = re.compile(r"[A-Za-z][\w.:#-]{0,80}")


def is_foreign(error: BaseException) -> bool:
    """Return True if the tables have the error; otherwise it is a defect of ours."""
    return not isinstance(error, RuntimeError) or _EXPIRED_ANYWAY in str(error)


def code_of(error: BaseException) -> str | None:
    """Return AWS's error code, or None if AWS has not answered."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, boto.ClientError) else None


def request_of(error: BaseException) -> str | None:
    """Return AWS's id of the request, for its support."""
    if not isinstance(error, boto.ClientError):
        return None
    found = error.response.get("ResponseMetadata", {}).get("RequestId")
    return None if found is None else str(found)


def translate(error: BaseException, call: ApiCall, *, reached: bool) -> EngineError:
    """Return our error for theirs; `reached`: the request may have reached the engine."""
    row = _answer(error, call) if isinstance(error, boto.ClientError) else _exception(error)
    text = f"{call.engine_name}: {row.text.format_map(_words(error, call))}"
    if row.kind is EngineUnavailable:
        return EngineUnavailable(text, sent=reached if row.sent is None else row.sent, throttled=row.throttled)
    if row.kind is EngineRefused:
        return EngineRefused(text, final=row.final)
    return row.kind(text)


def _answer(error: boto.ClientError, call: ApiCall) -> ErrorRow:
    code, message = code_of(error) or "", str(error.response.get("Error", {}).get("Message", ""))
    elsewhere = _elsewhere(call)
    if elsewhere and code in _PLACED:
        return refusal(elsewhere)
    row = _signed(code, message) or OPERATION_CODES.get((error.operation_name, code)) or CODES.get(code)
    if row:
        return row
    if int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") or 0) >= SERVER_ERROR:
        return outage(DOWN)
    return refusal("it refuses {action}{detail}") if _CODE.fullmatch(code) else refusal(NOT_IT)


def _exception(error: BaseException) -> ErrorRow:
    found = next(EXCEPTIONS[kind] for kind in type(error).__mro__ if kind in EXCEPTIONS)
    return _signed(type(error).__name__, str(error)) or found


def _signed(name: str, message: str) -> ErrorRow | None:
    return next((each.row for each in MESSAGE_SIGNS.get(name, ()) if each.sign in message), None)


def _elsewhere(call: ApiCall) -> str | None:
    """Return the message for an ARN of another Region or account than the engine's, or None."""
    found = _ARN.match(call.resource or "")
    if found and found["region"] != call.region:
        return f"{call.resource} is in {found['region']}, and this engine is set up for {call.region}: check region"
    if found and call.account and found["account"] != call.account:
        return f"{call.resource} is in account {found['account']}, and this engine is set up for {call.account}"
    return None


def _words(error: BaseException, call: ApiCall) -> Mapping[str, str]:
    action, resource = f"{call.service}:{_camel(call.operation)}", call.resource
    if isinstance(error, boto.ClientError):
        inner = error.operation_name != _camel(call.operation)  # the failed call was one for credentials
        action = f"sts:{error.operation_name}" if inner else action
        found = _PERFORM.search(str(error.response.get("Error", {}).get("Message", "")))
        if found:
            action, resource = found["action"], found["resource"] or resource
        elif inner:
            resource = call.role
    return {
        "action": action,
        "resource": resource or "it",
        "region": call.region,
        "endpoint": _endpoint(error, call),
        "detail": _detail(error),
        "unreached": _unreached(error, call),
    }


def _unreached(error: BaseException, call: ApiCall) -> str:
    """Return the first thing to check if the endpoint does not answer."""
    if not call.custom:
        return "connection refused, or unknown host"
    parts = urlsplit(_endpoint(error, call))
    if _REFUSED not in str(getattr(error, "kwargs", {}).get("error")):
        return "unknown host, or no way to it: check endpoint_url"
    start = f" Start it: python -m {_LOCAL} --port {parts.port}" if parts.port and parts.hostname in _LOOPBACK else ""
    return f"connection refused; is the engine running there?{start}"


def _camel(operation: str) -> str:
    return "".join(word.capitalize() for word in operation.split("_"))


def _endpoint(error: BaseException, call: ApiCall) -> str:
    """Return the URL of the call, which may be that of AWS STS, without query and credentials."""
    words: Any = getattr(error, "kwargs", {})  # Any: what botocore's exceptions were made of
    parts = urlsplit(str(words.get("endpoint_url") or call.endpoint))
    return f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")


def _detail(error: BaseException) -> str:
    """Return the part of an error's message that may be repeated, never the whole."""
    for kind, tell in DETAILS.items():
        if isinstance(error, kind):
            return tell(error)
    return type(error).__name__


def _of_answer(error: Any) -> str:  # Any: ClientError
    message = str(error.response.get("Error", {}).get("Message", ""))
    if found := _RULE.search(message):
        return f" ({found['member']}: {found['rule'].strip()})"
    if found := _BECAUSE.search(message):
        return f" (by {found['policy'] or found['none']} policy)"
    code = code_of(error) or ""
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return f" ({code})" if _CODE.fullmatch(code) and code not in CODES else f" (HTTP {status})"


def _of_half(error: Any) -> str:  # Any: PartialCredentialsError
    return f": {error.kwargs.get('cred_var')} is missing ({error.kwargs.get('provider')})"


def _of_source(error: Any) -> str:  # Any: CredentialRetrievalError
    return f" ({error.kwargs.get('provider')})"


def _of_parameters(error: BaseException) -> str:
    names = sorted({found["name"].rstrip(".,") for found in _PARAMETER.finditer(str(error))})
    return f" ({', '.join(names)[:MAX_WORD]})" if names else ""


def _of_file(error: Any) -> str:  # Any: OSError
    return f": {error.filename}: {error.strerror}" if error.filename else f" ({type(error).__name__})"


def _of_configuration(error: BaseException) -> str:
    return str(error).partition("\n")[0][:MAX_WORD].rstrip(".")


def _nothing(_: BaseException) -> str:
    return ""


DETAILS: Final[Mapping[type[BaseException], Callable[[Any], str]]] = {  # Any: each its own kind of exception
    boto.ClientError: _of_answer,
    boto.PartialCredentialsError: _of_half,
    boto.CredentialRetrievalError: _of_source,
    boto.ParamValidationError: _of_parameters,
    boto.ProfileNotFound: _of_configuration,
    boto.ConfigNotFound: _of_configuration,
    boto.ConfigParseError: _of_configuration,
    boto.InvalidConfigError: _of_configuration,
    boto.ConnectionError: _nothing,
    ResponseParserError: _nothing,
    OSError: _of_file,
}
