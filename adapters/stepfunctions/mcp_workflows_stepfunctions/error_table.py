"""The errors of AWS and boto3, and ours for each: a table of codes and one of exceptions.

The texts are ours, because AWS's may repeat the input, a token, or our identity; see `errors`. Sources: the errors of
each API action in botocore's model, and
https://docs.aws.amazon.com/step-functions/latest/apireference/CommonErrors.html.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false
# Reason: botocore has no types; what comes from it is Any, and is turned into types of our own at once.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from botocore import exceptions as boto
from botocore.parsers import ResponseParserError

from mcp_workflows.errors import EngineError, EngineRefused, EngineUnavailable, ExecutionNotFound
from mcp_workflows_stepfunctions.attempts import THROTTLING


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRow:
    """Our error for one of theirs. `text` may use {action}, {resource}, {region}, {role}, {endpoint}, {detail}."""

    kind: type[EngineError]
    text: str
    final: bool = False  # for EngineRefused
    sent: bool | None = None  # of EngineUnavailable; None: as recorded by the attempts
    throttled: bool = False  # for EngineUnavailable


def refusal(text: str, *, final: bool = False) -> ErrorRow:
    """Return a row for a definite refusal."""
    return ErrorRow(kind=EngineRefused, text=text, final=final)


def outage(text: str, *, sent: bool | None = None, throttled: bool = False) -> ErrorRow:
    """Return a row for an unknown outcome."""
    return ErrorRow(kind=EngineUnavailable, text=text, sent=sent, throttled=throttled)


_CREDENTIALS: Final = "AWS does not know our access key: check the profile, AWS_ACCESS_KEY_ID and the Region"
_EXPIRED: Final = "our AWS credentials have expired: renew them, with `aws sso login` for instance"
_SIGNATURE: Final = (
    "AWS does not accept our signature: the secret access key is wrong, or there is no session token with it"
)
_CLOCK: Final = "AWS does not accept our signature: the clock of this machine is wrong"
_ELSEWHERE: Final = "AWS does not accept our signature: {endpoint} is not in {region}: check region and endpoint_url"
_NOT_OPEN: Final = "this question is not open any more"
_NO_MACHINE: Final = "there is no state machine {resource}"
_NO_EXECUTION: Final = "it has no such execution: never had, or dropped it after its retention"
DOWN: Final = "AWS has an internal error, or is overloaded"
_THROTTLED: Final = "AWS throttles {action}: the quota of the account in {region} is used up"
_DENIED: Final = "no permission: {action} on {resource} is not allowed; grant it to the role or user we are"
_NOT_ACTIVE: Final = "the account may not use this service in {region}: opt in to the Region, or see AWS's billing"
NOT_IT: Final = "what answers at {endpoint} is not this API{detail}: check endpoint_url"

CODES: Final[Mapping[str, ErrorRow]] = {
    # the input itself
    "InvalidExecutionInput": refusal("the input is no JSON, or over 256 KiB", final=True),
    "InvalidName": refusal("the name of the execution is not allowed", final=True),
    "InvalidOutput": refusal("the answer is no JSON, or over 256 KiB", final=True),
    "ValidationException": refusal("the request is not valid{detail}", final=True),
    "SerializationException": refusal("the request is not valid{detail}", final=True),
    "MissingRequiredParameter": refusal("the request is not valid{detail}", final=True),
    # the resource
    "InvalidArn": refusal("{resource} is no ARN that {action} takes"),
    "StateMachineDoesNotExist": refusal(_NO_MACHINE),
    "StateMachineDeleting": refusal("the state machine {resource} is being deleted"),
    "StateMachineTypeNotSupported": refusal("{action} is not possible for this type of state machine (Express)"),
    "ResourceNotFound": refusal("there is no {resource}"),
    "ResourceNotFoundException": refusal("there is no {resource}"),
    "ConflictException": refusal("{resource} is being changed by somebody else"),
    "ExecutionDoesNotExist": ErrorRow(kind=ExecutionNotFound, text=_NO_EXECUTION),
    "ExecutionAlreadyExists": refusal("the name of the execution is taken"),
    "ExecutionNotRedrivable": refusal("the execution cannot be redriven"),
    "InvalidToken": refusal(_NOT_OPEN),
    "TaskDoesNotExist": refusal(_NOT_OPEN),
    "TaskTimedOut": refusal(_NOT_OPEN),
    "QueueDoesNotExist": refusal("there is no queue {resource}"),
    "AWS.SimpleQueueService.NonExistentQueue": refusal("there is no queue {resource}"),
    # limits
    "ExecutionLimitExceeded": outage("too many executions are open in this account: its quota is used up"),
    "ServiceQuotaExceededException": outage("a quota of the account is used up"),
    **dict.fromkeys(THROTTLING, outage(_THROTTLED, throttled=True)),
    # our identity
    "AccessDeniedException": refusal(_DENIED),
    "AccessDenied": refusal(_DENIED),
    "UnauthorizedOperation": refusal(_DENIED),
    "NotAuthorized": refusal(_DENIED),
    "ExpiredTokenException": refusal(_EXPIRED),
    "ExpiredToken": refusal(_EXPIRED),
    "RequestExpired": refusal(_CLOCK),
    "RequestTimeTooSkewed": refusal(_CLOCK),
    "UnrecognizedClientException": refusal(_CREDENTIALS),
    "InvalidClientTokenId": refusal(_CREDENTIALS),
    "InvalidAccessKeyId": refusal(_CREDENTIALS),
    "AuthFailure": refusal(_CREDENTIALS),
    "MissingAuthenticationToken": refusal(_CREDENTIALS),
    "MissingAuthenticationTokenException": refusal(_CREDENTIALS),
    "InvalidSignatureException": refusal(_SIGNATURE),
    "SignatureDoesNotMatch": refusal(_SIGNATURE),
    "IncompleteSignature": refusal(_SIGNATURE),
    "IncompleteSignatureException": refusal(_SIGNATURE),
    "OptInRequired": refusal(_NOT_ACTIVE),
    "SubscriptionRequiredException": refusal(_NOT_ACTIVE),
    "RegionDisabledException": refusal("AWS STS is not active in {region} for the account: activate it, in IAM"),
    "InvalidIdentityToken": refusal("AWS STS does not accept our web identity token"),
    "IDPRejectedClaim": refusal("AWS STS does not accept our web identity token"),
    # encryption
    "KmsAccessDeniedException": refusal(
        "no permission for the KMS key that encrypts it: grant kms:Decrypt and kms:GenerateDataKey to whom we are"
    ),
    "KmsThrottlingException": outage("AWS KMS throttles the key that encrypts it", throttled=True),
    "KmsInvalidStateException": refusal("the KMS key that encrypts it is disabled, or is being deleted"),
    # AWS itself
    "InternalFailure": outage(DOWN),
    "InternalError": outage(DOWN),
    "InternalServerError": outage(DOWN),
    "InternalServiceError": outage(DOWN),
    "ServiceUnavailable": outage(DOWN),
    "ServiceUnavailableException": outage(DOWN),
    "RequestTimeout": outage("AWS got the request too slowly"),
    "RequestTimeoutException": outage("AWS got the request too slowly"),
    # not AWS
    "UnknownOperationException": refusal(NOT_IT),
    "InvalidAction": refusal(NOT_IT),
}

_SIGN_IN: Final = refusal("the sign-in of AWS IAM Identity Center has ended: `aws sso login`")
_NO_CREDENTIALS: Final = refusal(
    "found no AWS credentials: name a profile, set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, `aws sso login`, or "
    "give this machine a role"
)
_CONFIGURED: Final = refusal("boto3 cannot use its configuration ({detail}): check the profile in ~/.aws")
_NO_ANSWER: Final = outage("no answer in time from {endpoint}")
_LOST: Final = outage("the connection to {endpoint} was lost")

EXCEPTIONS: Final[Mapping[type[BaseException], ErrorRow]] = {
    boto.NoCredentialsError: _NO_CREDENTIALS,
    boto.PartialCredentialsError: refusal("only half of the AWS credentials are there{detail}"),
    boto.CredentialRetrievalError: refusal("AWS credentials cannot be got{detail}: check the profile in ~/.aws"),
    boto.RefreshWithMFAUnsupportedError: refusal("AWS credentials cannot be renewed: the profile wants an MFA code"),
    boto.SSOError: _SIGN_IN,
    boto.TokenRetrievalError: _SIGN_IN,
    boto.LoginError: refusal("the sign-in has ended: `aws login`"),
    boto.MetadataRetrievalError: refusal("the metadata service of this machine gives no AWS credentials"),
    boto.ProfileNotFound: _CONFIGURED,
    boto.ConfigNotFound: _CONFIGURED,
    boto.ConfigParseError: _CONFIGURED,
    boto.InvalidConfigError: _CONFIGURED,
    boto.UnknownCredentialError: _CONFIGURED,
    boto.EndpointProviderError: refusal("boto3 knows no endpoint for this in {region}: check region"),
    boto.BaseEndpointResolverError: refusal("boto3 knows no endpoint for this in {region}: check region"),
    boto.ParamValidationError: refusal("the request is not valid{detail}", final=True),
    boto.EndpointConnectionError: outage("cannot connect to {endpoint}: {unreached}"),
    boto.ConnectTimeoutError: outage("no connection to {endpoint} in time"),
    boto.ProxyConnectionError: outage("cannot connect to the proxy: check HTTPS_PROXY"),
    boto.SSLError: outage("TLS to {endpoint} failed"),
    boto.ReadTimeoutError: _NO_ANSWER,
    boto.HTTPClientError: _LOST,
    boto.ResponseStreamingError: _LOST,
    boto.IncompleteReadError: _LOST,
    ResponseParserError: outage(NOT_IT),
    OSError: refusal("AWS credentials cannot be read{detail}"),
    RuntimeError: refusal(_EXPIRED),
    boto.BotoCoreError: outage("boto3 failed ({detail})"),
}
"""Rows by class; the nearest of an exception's base classes counts."""

OPERATION_CODES: Final[Mapping[tuple[str, str], ErrorRow]] = {  # by operation as AWS calls it, and code
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


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSign:
    """A part of a message that says more than its code."""

    sign: str
    row: ErrorRow


_TLS: Final = "TLS to {endpoint} failed: "
MESSAGE_SIGNS: Final[Mapping[str, tuple[MessageSign, ...]]] = {
    "InvalidSignatureException": (
        MessageSign(sign="Signature expired", row=refusal(_CLOCK)),
        MessageSign(sign="not yet current", row=refusal(_CLOCK)),
        MessageSign(sign="scoped to a valid ", row=refusal(_ELSEWHERE)),
    ),
    "SignatureDoesNotMatch": (
        MessageSign(sign="Signature expired", row=refusal(_CLOCK)),
        MessageSign(sign="not yet current", row=refusal(_CLOCK)),
        MessageSign(sign="scoped to a valid ", row=refusal(_ELSEWHERE)),
    ),
    "SSLError": (
        MessageSign(
            sign="WRONG_VERSION_NUMBER",
            row=outage(_TLS + "it does not speak TLS; write http:// in endpoint_url", sent=False),
        ),
        MessageSign(
            sign="CERTIFICATE_VERIFY_FAILED",
            row=outage(_TLS + "we do not trust its certificate; set AWS_CA_BUNDLE to the CA's file", sent=False),
        ),
        MessageSign(sign="HANDSHAKE", row=outage(_TLS + "no version or cipher in common", sent=False)),
    ),
}
