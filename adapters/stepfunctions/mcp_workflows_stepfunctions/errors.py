"""The errors of AWS and boto3, and our errors for them: tables of codes and exceptions, and the translation.

The texts are ours, because AWS's may repeat the input, a token, or our identity; only harmless parts of theirs are
repeated. Sources: the errors of each API action in botocore's model, and
https://docs.aws.amazon.com/step-functions/latest/apireference/CommonErrors.html.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false
# Reason: botocore has no types; its values are Any, and are converted to our types at once.

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from botocore import exceptions as boto
from botocore.parsers import ResponseParserError

from mcp_workflows.errors import EngineError, EngineRefused, EngineUnavailable, ExecutionNotFound
from mcp_workflows_stepfunctions.boto3_clients import THROTTLING

DENIED: Final = "AccessDeniedException"
KMS_REFUSES: Final = frozenset({"KmsAccessDeniedException", "KmsInvalidStateException", "KmsThrottlingException"})
"""Codes for data encrypted with a key that we may not or cannot use now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRow:
    """Our error for one of theirs. `text` may use {action}, {resource}, {region}, {role}, {endpoint}, {detail}."""

    kind: type[EngineError]
    text: str
    final: bool = False  # for EngineRefused
    sent: bool | None = None  # for EngineUnavailable; None: as the attempts recorded
    throttled: bool = False  # for EngineUnavailable


def refusal(text: str, *, final: bool = False) -> ErrorRow:
    """Return a row for a definite refusal."""
    return ErrorRow(kind=EngineRefused, text=text, final=final)


def outage(text: str, *, sent: bool | None = None, throttled: bool = False) -> ErrorRow:
    """Return a row for an unknown outcome."""
    return ErrorRow(kind=EngineUnavailable, text=text, sent=sent, throttled=throttled)


_CREDENTIALS: Final = refusal("AWS does not know our access key: check the profile, AWS_ACCESS_KEY_ID and the Region")
_EXPIRED: Final = refusal("our AWS credentials have expired: renew them, with `aws sso login` for instance")
_SIGNATURE: Final = refusal(
    "AWS does not accept our signature: the secret access key is wrong, or there is no session token with it"
)
_CLOCK: Final = refusal("AWS does not accept our signature: the clock of this machine is wrong")
_ELSEWHERE: Final = "AWS does not accept our signature: {endpoint} is not in {region}: check region and endpoint_url"
_WEB_IDENTITY: Final = refusal("AWS STS does not accept our web identity token")
_INVALID: Final = refusal("the request is not valid{detail}", final=True)
_NOT_OPEN: Final = refusal("this question is not open any more")
_NO_QUEUE: Final = refusal("there is no queue {resource}")
_NO_EXECUTION: Final = "it has no such execution: never had, or dropped it after its retention"
_DOWN: Final = outage("AWS has an internal error, or is overloaded")
_THROTTLED: Final = "AWS throttles {action}: the quota of the account in {region} is used up"
_DENIED: Final = "no permission: {action} on {resource} is not allowed; grant it to the role or user we are"
_NOT_ACTIVE: Final = "the account may not use this service in {region}: opt in to the Region, or see AWS's billing"
_NOT_IT: Final = "what answers at {endpoint} is not this API{detail}: check endpoint_url"

CODES: Final[Mapping[str, ErrorRow]] = {
    # the input itself
    "InvalidExecutionInput": refusal("the input is no JSON, or over 256 KiB", final=True),
    "InvalidName": refusal("the name of the execution is not allowed", final=True),
    "InvalidOutput": refusal("the answer is no JSON, or over 256 KiB", final=True),
    **dict.fromkeys(("ValidationException", "SerializationException", "MissingRequiredParameter"), _INVALID),
    # the resource
    "InvalidArn": refusal("{resource} is no ARN that {action} takes"),
    "StateMachineDoesNotExist": refusal("there is no state machine {resource}"),
    "StateMachineDeleting": refusal("the state machine {resource} is being deleted"),
    "StateMachineTypeNotSupported": refusal("{action} is not possible for this type of state machine (Express)"),
    **dict.fromkeys(("ResourceNotFound", "ResourceNotFoundException"), refusal("there is no {resource}")),
    "ConflictException": refusal("{resource} is being changed by somebody else"),
    "ExecutionDoesNotExist": ErrorRow(kind=ExecutionNotFound, text=_NO_EXECUTION),
    "ExecutionAlreadyExists": refusal("the name of the execution is taken"),
    "ExecutionNotRedrivable": refusal("the execution cannot be redriven"),
    **dict.fromkeys(("InvalidToken", "TaskDoesNotExist", "TaskTimedOut"), _NOT_OPEN),
    **dict.fromkeys(("QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue"), _NO_QUEUE),
    # limits
    "ExecutionLimitExceeded": outage("too many executions are open in this account: its quota is used up"),
    "ServiceQuotaExceededException": outage("a quota of the account is used up"),
    **dict.fromkeys(THROTTLING, outage(_THROTTLED, throttled=True)),
    # our identity
    **dict.fromkeys((DENIED, "AccessDenied", "UnauthorizedOperation", "NotAuthorized"), refusal(_DENIED)),
    **dict.fromkeys(("ExpiredTokenException", "ExpiredToken"), _EXPIRED),
    **dict.fromkeys(("RequestExpired", "RequestTimeTooSkewed"), _CLOCK),
    **dict.fromkeys(("UnrecognizedClientException", "InvalidClientTokenId", "InvalidAccessKeyId"), _CREDENTIALS),
    **dict.fromkeys(("AuthFailure", "MissingAuthenticationToken"), _CREDENTIALS),
    "MissingAuthenticationTokenException": _CREDENTIALS,
    **dict.fromkeys(("InvalidSignatureException", "SignatureDoesNotMatch"), _SIGNATURE),
    **dict.fromkeys(("IncompleteSignature", "IncompleteSignatureException"), _SIGNATURE),
    **dict.fromkeys(("OptInRequired", "SubscriptionRequiredException"), refusal(_NOT_ACTIVE)),
    "RegionDisabledException": refusal("AWS STS is not active in {region} for the account: activate it, in IAM"),
    **dict.fromkeys(("InvalidIdentityToken", "IDPRejectedClaim"), _WEB_IDENTITY),
    # encryption
    "KmsAccessDeniedException": refusal(
        "no permission for the KMS key that encrypts it: grant kms:Decrypt and kms:GenerateDataKey to whom we are"
    ),
    "KmsThrottlingException": outage("AWS KMS throttles the key that encrypts it", throttled=True),
    "KmsInvalidStateException": refusal("the KMS key that encrypts it is disabled, or is being deleted"),
    # AWS itself
    **dict.fromkeys(("InternalFailure", "InternalError", "InternalServerError", "InternalServiceError"), _DOWN),
    **dict.fromkeys(("ServiceUnavailable", "ServiceUnavailableException"), _DOWN),
    **dict.fromkeys(("RequestTimeout", "RequestTimeoutException"), outage("AWS got the request too slowly")),
    # not AWS
    **dict.fromkeys(("UnknownOperationException", "InvalidAction"), refusal(_NOT_IT)),
}

_SIGN_IN: Final = refusal("the sign-in of AWS IAM Identity Center has ended: `aws sso login`")
_NO_CREDENTIALS: Final = refusal(
    "found no AWS credentials: name a profile, set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, `aws sso login`, or "
    "give this machine a role"
)
_CONFIGURED: Final = refusal("boto3 cannot use its configuration ({detail}): check the profile in ~/.aws")
_NO_ENDPOINT: Final = refusal("boto3 knows no endpoint for this in {region}: check region")
_LOST: Final = outage("the connection to {endpoint} was lost")

EXCEPTIONS: Final[Mapping[type[BaseException], ErrorRow]] = {
    boto.NoCredentialsError: _NO_CREDENTIALS,
    boto.PartialCredentialsError: refusal("only half of the AWS credentials are there{detail}"),
    boto.CredentialRetrievalError: refusal("AWS credentials cannot be got{detail}: check the profile in ~/.aws"),
    boto.RefreshWithMFAUnsupportedError: refusal("AWS credentials cannot be renewed: the profile wants an MFA code"),
    **dict.fromkeys((boto.SSOError, boto.TokenRetrievalError), _SIGN_IN),
    boto.LoginError: refusal("the sign-in has ended: `aws login`"),
    boto.MetadataRetrievalError: refusal("the metadata service of this machine gives no AWS credentials"),
    **dict.fromkeys((boto.ProfileNotFound, boto.ConfigNotFound, boto.ConfigParseError), _CONFIGURED),
    **dict.fromkeys((boto.InvalidConfigError, boto.UnknownCredentialError), _CONFIGURED),
    **dict.fromkeys((boto.EndpointProviderError, boto.BaseEndpointResolverError), _NO_ENDPOINT),
    boto.ParamValidationError: _INVALID,
    boto.EndpointConnectionError: outage("cannot connect to {endpoint}: {unreached}"),
    boto.ConnectTimeoutError: outage("no connection to {endpoint} in time"),
    boto.ProxyConnectionError: outage("cannot connect to the proxy: check HTTPS_PROXY"),
    boto.SSLError: outage("TLS to {endpoint} failed"),
    boto.ReadTimeoutError: outage("no answer in time from {endpoint}"),
    **dict.fromkeys((boto.HTTPClientError, boto.ResponseStreamingError, boto.IncompleteReadError), _LOST),
    ResponseParserError: outage(_NOT_IT),
    OSError: refusal("AWS credentials cannot be read{detail}"),
    RuntimeError: _EXPIRED,
    boto.BotoCoreError: outage("boto3 failed ({detail})"),
}
"""Rows by class; the nearest base class of an exception counts."""

OPERATION_CODES: Final[Mapping[tuple[str, str], ErrorRow]] = {  # by AWS's operation name, and code
    ("AssumeRole", "AccessDenied"): refusal(
        "no permission: sts:AssumeRole on {resource} is not allowed{detail}; allow it to whom we are, and let the "
        "role's trust policy name us (with its external_id, and sts:SetSourceIdentity if source_identity is set)"
    ),
    ("AssumeRole", "ValidationError"): refusal("AWS STS does not accept assume_role as it is set{detail}"),
    ("AssumeRoleWithWebIdentity", "AccessDenied"): refusal("the role does not accept our web identity token"),
    **{
        (operation, "InvalidArn"): ErrorRow(kind=ExecutionNotFound, text="{resource} is no execution that it can have")
        for operation in ("DescribeExecution", "GetExecutionHistory", "StopExecution")
    },
}


_TLS: Final = "TLS to {endpoint} failed: "
_OF_SIGNATURES: Final = {
    "Signature expired": _CLOCK,
    "not yet current": _CLOCK,
    "scoped to a valid ": refusal(_ELSEWHERE),
}
MESSAGE_SIGNS: Final[Mapping[str, Mapping[str, ErrorRow]]] = {
    "InvalidSignatureException": _OF_SIGNATURES,
    "SignatureDoesNotMatch": _OF_SIGNATURES,
    "SSLError": {
        "WRONG_VERSION_NUMBER": outage(_TLS + "it does not speak TLS; write http:// in endpoint_url", sent=False),
        "CERTIFICATE_VERIFY_FAILED": outage(
            _TLS + "we do not trust its certificate; set AWS_CA_BUNDLE to the CA's file", sent=False
        ),
        "HANDSHAKE": outage(_TLS + "no version or cipher in common", sent=False),
    },
}
"""Parts of messages that are more precise than the code or exception, by its name."""

FOREIGN: Final = (boto.ClientError, boto.BotoCoreError, ResponseParserError, OSError, RuntimeError)
"""All exceptions of a call of botocore; only one kind of `RuntimeError`: see `is_foreign`."""

STALE: Final = frozenset(
    {"ExpiredTokenException", "ExpiredToken", "UnrecognizedClientException", "InvalidClientTokenId"}
)
"""Codes of credentials that may have been renewed in their file since."""

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
    """The failed call and its engine."""

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
    """Return True if the tables have the error; otherwise it is our defect."""
    return not isinstance(error, RuntimeError) or _EXPIRED_ANYWAY in str(error)


def code_of(error: BaseException) -> str | None:
    """Return AWS's error code, or None without an answer from AWS."""
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
        return _DOWN
    return refusal("it refuses {action}{detail}") if _CODE.fullmatch(code) else refusal(_NOT_IT)


def _exception(error: BaseException) -> ErrorRow:
    found = next(EXCEPTIONS[kind] for kind in type(error).__mro__ if kind in EXCEPTIONS)
    return _signed(type(error).__name__, str(error)) or found


def _signed(name: str, message: str) -> ErrorRow | None:
    return next((row for sign, row in MESSAGE_SIGNS.get(name, {}).items() if sign in message), None)


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
    words: Any = getattr(error, "kwargs", {})  # the arguments of botocore's exceptions
    parts = urlsplit(str(words.get("endpoint_url") or call.endpoint))
    return f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")


def _detail(error: Any) -> str:  # Any: the words of botocore's exceptions are in untyped attributes
    """Return the part of an error's message that may be repeated, never all of it."""
    match error:
        case boto.ClientError():
            return _detail_of_answer(error)
        case boto.PartialCredentialsError():
            return f": {error.kwargs.get('cred_var')} is missing ({error.kwargs.get('provider')})"
        case boto.CredentialRetrievalError():
            return f" ({error.kwargs.get('provider')})"
        case boto.ParamValidationError():
            names = sorted({found["name"].rstrip(".,") for found in _PARAMETER.finditer(str(error))})
            return f" ({', '.join(names)[:MAX_WORD]})" if names else ""
        case boto.ProfileNotFound() | boto.ConfigNotFound() | boto.ConfigParseError() | boto.InvalidConfigError():
            return str(error).partition("\n")[0][:MAX_WORD].rstrip(".")
        case boto.ConnectionError() | ResponseParserError():
            return ""
        case OSError():
            return f": {error.filename}: {error.strerror}" if error.filename else f" ({type(error).__name__})"
        case _:
            return type(error).__name__


def _detail_of_answer(error: Any) -> str:  # Any: ClientError
    message = str(error.response.get("Error", {}).get("Message", ""))
    if found := _RULE.search(message):
        return f" ({found['member']}: {found['rule'].strip()})"
    if found := _BECAUSE.search(message):
        return f" (by {found['policy'] or found['none']} policy)"
    code = code_of(error) or ""
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return f" ({code})" if _CODE.fullmatch(code) and code not in CODES else f" (HTTP {status})"
