"""What AWS and boto3 say when they do not do it, and what that is for us: one table of codes, one of exceptions.

The words are ours: AWS's may repeat the input, a token, or who we are; see `translating`. Sources: the errors of each
API action in botocore's model, and https://docs.aws.amazon.com/step-functions/latest/apireference/CommonErrors.html.
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
class Row:
    """What one error is for us. `text` may use {action}, {resource}, {region}, {role}, {endpoint}, {detail}."""

    kind: type[EngineError]
    text: str
    final: bool = False  # of EngineRefused
    sent: bool | None = None  # of EngineUnavailable; None: as the attempts went
    throttled: bool = False  # likewise


def refused(text: str, *, final: bool = False) -> Row:
    """A definite no."""
    return Row(kind=EngineRefused, text=text, final=final)


def unavailable(text: str, *, sent: bool | None = None, throttled: bool = False) -> Row:
    """Nobody knows."""
    return Row(kind=EngineUnavailable, text=text, sent=sent, throttled=throttled)


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

CODES: Final[Mapping[str, Row]] = {
    # the input itself
    "InvalidExecutionInput": refused("the input is no JSON, or over 256 KiB", final=True),
    "InvalidName": refused("the name of the execution is not allowed", final=True),
    "InvalidOutput": refused("the answer is no JSON, or over 256 KiB", final=True),
    "ValidationException": refused("the request is not valid{detail}", final=True),
    "SerializationException": refused("the request is not valid{detail}", final=True),
    "MissingRequiredParameter": refused("the request is not valid{detail}", final=True),
    # what is asked for
    "InvalidArn": refused("{resource} is no ARN that {action} takes"),
    "StateMachineDoesNotExist": refused(_NO_MACHINE),
    "StateMachineDeleting": refused("the state machine {resource} is being deleted"),
    "StateMachineTypeNotSupported": refused("{action} is not possible for this type of state machine (Express)"),
    "ResourceNotFound": refused("there is no {resource}"),
    "ResourceNotFoundException": refused("there is no {resource}"),
    "ConflictException": refused("{resource} is being changed by somebody else"),
    "ExecutionDoesNotExist": Row(kind=ExecutionNotFound, text=_NO_EXECUTION),
    "ExecutionAlreadyExists": refused("the name of the execution is taken"),
    "ExecutionNotRedrivable": refused("the execution cannot be redriven"),
    "InvalidToken": refused(_NOT_OPEN),
    "TaskDoesNotExist": refused(_NOT_OPEN),
    "TaskTimedOut": refused(_NOT_OPEN),
    "QueueDoesNotExist": refused("there is no queue {resource}"),
    "AWS.SimpleQueueService.NonExistentQueue": refused("there is no queue {resource}"),
    # limits
    "ExecutionLimitExceeded": unavailable("too many executions are open in this account: its quota is used up"),
    "ServiceQuotaExceededException": unavailable("a quota of the account is used up"),
    **dict.fromkeys(THROTTLING, unavailable(_THROTTLED, throttled=True)),
    # who we are
    "AccessDeniedException": refused(_DENIED),
    "AccessDenied": refused(_DENIED),
    "UnauthorizedOperation": refused(_DENIED),
    "NotAuthorized": refused(_DENIED),
    "ExpiredTokenException": refused(_EXPIRED),
    "ExpiredToken": refused(_EXPIRED),
    "RequestExpired": refused(_CLOCK),
    "RequestTimeTooSkewed": refused(_CLOCK),
    "UnrecognizedClientException": refused(_CREDENTIALS),
    "InvalidClientTokenId": refused(_CREDENTIALS),
    "InvalidAccessKeyId": refused(_CREDENTIALS),
    "AuthFailure": refused(_CREDENTIALS),
    "MissingAuthenticationToken": refused(_CREDENTIALS),
    "MissingAuthenticationTokenException": refused(_CREDENTIALS),
    "InvalidSignatureException": refused(_SIGNATURE),
    "SignatureDoesNotMatch": refused(_SIGNATURE),
    "IncompleteSignature": refused(_SIGNATURE),
    "IncompleteSignatureException": refused(_SIGNATURE),
    "OptInRequired": refused(_NOT_ACTIVE),
    "SubscriptionRequiredException": refused(_NOT_ACTIVE),
    "RegionDisabledException": refused("AWS STS is not active in {region} for the account: activate it, in IAM"),
    "InvalidIdentityToken": refused("AWS STS does not accept our web identity token"),
    "IDPRejectedClaim": refused("AWS STS does not accept our web identity token"),
    # encryption
    "KmsAccessDeniedException": refused(
        "no permission for the KMS key that encrypts it: grant kms:Decrypt and kms:GenerateDataKey to whom we are"
    ),
    "KmsThrottlingException": unavailable("AWS KMS throttles the key that encrypts it", throttled=True),
    "KmsInvalidStateException": refused("the KMS key that encrypts it is disabled, or is being deleted"),
    # AWS itself
    "InternalFailure": unavailable(DOWN),
    "InternalError": unavailable(DOWN),
    "InternalServerError": unavailable(DOWN),
    "InternalServiceError": unavailable(DOWN),
    "ServiceUnavailable": unavailable(DOWN),
    "ServiceUnavailableException": unavailable(DOWN),
    "RequestTimeout": unavailable("AWS got the request too slowly"),
    "RequestTimeoutException": unavailable("AWS got the request too slowly"),
    # not AWS
    "UnknownOperationException": refused(NOT_IT),
    "InvalidAction": refused(NOT_IT),
}

_SIGN_IN: Final = refused("the sign-in of AWS IAM Identity Center has ended: `aws sso login`")
_NO_CREDENTIALS: Final = refused(
    "found no AWS credentials: name a profile, set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, `aws sso login`, or "
    "give this machine a role"
)
_CONFIGURED: Final = refused("boto3 cannot use its configuration ({detail}): check the profile in ~/.aws")
_NO_ANSWER: Final = unavailable("no answer in time from {endpoint}")
_LOST: Final = unavailable("the connection to {endpoint} was lost")

EXCEPTIONS: Final[Mapping[type[BaseException], Row]] = {
    boto.NoCredentialsError: _NO_CREDENTIALS,
    boto.PartialCredentialsError: refused("only half of the AWS credentials are there{detail}"),
    boto.CredentialRetrievalError: refused("AWS credentials cannot be got{detail}: check the profile in ~/.aws"),
    boto.RefreshWithMFAUnsupportedError: refused("AWS credentials cannot be renewed: the profile wants an MFA code"),
    boto.SSOError: _SIGN_IN,
    boto.TokenRetrievalError: _SIGN_IN,
    boto.LoginError: refused("the sign-in has ended: `aws login`"),
    boto.MetadataRetrievalError: refused("the metadata service of this machine gives no AWS credentials"),
    boto.ProfileNotFound: _CONFIGURED,
    boto.ConfigNotFound: _CONFIGURED,
    boto.ConfigParseError: _CONFIGURED,
    boto.InvalidConfigError: _CONFIGURED,
    boto.UnknownCredentialError: _CONFIGURED,
    boto.EndpointProviderError: refused("boto3 knows no endpoint for this in {region}: check region"),
    boto.BaseEndpointResolverError: refused("boto3 knows no endpoint for this in {region}: check region"),
    boto.ParamValidationError: refused("the request is not valid{detail}", final=True),
    boto.EndpointConnectionError: unavailable("cannot connect to {endpoint}: {unreached}"),
    boto.ConnectTimeoutError: unavailable("no connection to {endpoint} in time"),
    boto.ProxyConnectionError: unavailable("cannot connect to the proxy: check HTTPS_PROXY"),
    boto.SSLError: unavailable("TLS to {endpoint} failed"),
    boto.ReadTimeoutError: _NO_ANSWER,
    boto.HTTPClientError: _LOST,
    boto.ResponseStreamingError: _LOST,
    boto.IncompleteReadError: _LOST,
    ResponseParserError: unavailable(NOT_IT),
    OSError: refused("AWS credentials cannot be read{detail}"),
    RuntimeError: refused(_EXPIRED),
    boto.BotoCoreError: unavailable("boto3 failed ({detail})"),
}
"""By class, the nearest of an exception's classes counts."""

SPECIAL: Final[Mapping[tuple[str, str], Row]] = {  # by operation as AWS calls it, and code
    ("AssumeRole", "AccessDenied"): refused(
        "no permission: sts:AssumeRole on {resource} is not allowed{detail}; allow it to whom we are, and let the "
        "role's trust policy name us (with its external_id, and sts:SetSourceIdentity if source_identity is set)"
    ),
    ("AssumeRole", "ValidationError"): refused("AWS STS does not accept assume_role as it is set{detail}"),
    ("AssumeRoleWithWebIdentity", "AccessDenied"): refused("the role does not accept our web identity token"),
    **{
        (operation, "InvalidArn"): Row(kind=ExecutionNotFound, text="{resource} is no execution that it can have")
        for operation in ("DescribeExecution", "GetExecutionHistory", "StopExecution")
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """What a message tells beyond its code."""

    sign: str
    row: Row


_TLS: Final = "TLS to {endpoint} failed: "
SIGNS: Final[Mapping[str, tuple[Sign, ...]]] = {
    "InvalidSignatureException": (
        Sign(sign="Signature expired", row=refused(_CLOCK)),
        Sign(sign="not yet current", row=refused(_CLOCK)),
        Sign(sign="scoped to a valid ", row=refused(_ELSEWHERE)),
    ),
    "SignatureDoesNotMatch": (
        Sign(sign="Signature expired", row=refused(_CLOCK)),
        Sign(sign="not yet current", row=refused(_CLOCK)),
        Sign(sign="scoped to a valid ", row=refused(_ELSEWHERE)),
    ),
    "SSLError": (
        Sign(
            sign="WRONG_VERSION_NUMBER",
            row=unavailable(_TLS + "it does not speak TLS; write http:// in endpoint_url", sent=False),
        ),
        Sign(
            sign="CERTIFICATE_VERIFY_FAILED",
            row=unavailable(_TLS + "we do not trust its certificate; set AWS_CA_BUNDLE to the CA's file", sent=False),
        ),
        Sign(sign="HANDSHAKE", row=unavailable(_TLS + "no version or cipher in common", sent=False)),
    ),
}
