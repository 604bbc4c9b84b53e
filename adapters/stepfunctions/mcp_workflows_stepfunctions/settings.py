"""The settings of a Step Functions engine, and the options of one tool."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Annotated, Any, Final, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from mcp_workflows import Duration
from mcp_workflows.adapter import JSON, read_options
from mcp_workflows.errors import EngineRefused
from mcp_workflows_stepfunctions.arns import REGION

_MODEL: Final = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

_REGION = re.compile(REGION, re.ASCII)
_ACCOUNT = re.compile(r"\d{12}", re.ASCII)
_ROLE = re.compile(r"arn:aws[a-z-]*:iam::(?P<account>\d{12}):role/[\w+=,.@/-]{1,512}", re.ASCII)
_EXTERNAL_ID = re.compile(r"[\w+=,.@:/-]{2,1224}", re.ASCII)
SESSION: Final = re.compile(r"[\w+=,.@-]{2,64}", re.ASCII)  # a source identity or the name of a session
_QUEUE = re.compile(r"/\d{12}/[A-Za-z0-9_-]{1,80}(\.fifo)?")
_NO_QUEUE: Final = "write the URL of an SQS queue: https://sqs.REGION.amazonaws.com/ACCOUNT/NAME"
_TAG = re.compile(r"(?P<key>[^=]{1,128})=(?P<value>.{0,256})")
_SHORTEST_SESSION, _LONGEST_SESSION = timedelta(minutes=15), timedelta(hours=12)
_SECRETS: Final = frozenset(
    {"access_key", "secret_key", "session_token", "access_key_id", "secret_access_key"}
    | {"aws_access_key_id", "aws_secret_access_key", "aws_session_token"}
)


def _account(written: object) -> object:
    """Restore the leading zeros of an account that YAML read as a number."""
    account = f"{written:012d}" if isinstance(written, int) and not isinstance(written, bool) else written
    if isinstance(account, str) and not _ACCOUNT.fullmatch(account):
        raise ValueError("write an AWS account without dashes: 123456789012")
    return account


Account = Annotated[
    str, BeforeValidator(_account, json_schema_input_type=str | int), Field(json_schema_extra={"pattern": r"^\d{12}$"})
]


def _matching(pattern: re.Pattern[str], message: str) -> AfterValidator:
    return _checked(lambda text: pattern.fullmatch(text) is not None, message)


def _checked(is_valid: Callable[[Any], object], message: str) -> AfterValidator:  # Any: a value of the field's type
    def check(value: Any) -> Any:
        if not is_valid(value):
            raise ValueError(message)
        return value

    return AfterValidator(check)


def _url(url: str) -> str:
    parts = urlsplit(url or "https://aws")  # an empty one means AWS's own
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment or parts.port == 0:
        raise ValueError("write a URL: http://localhost:4566")
    if "@" in parts.netloc:
        raise ValueError("no credentials in a URL")
    return url.rstrip("/")


_Url = Annotated[str, AfterValidator(_url)]
_ExternalId = Annotated[str, _matching(_EXTERNAL_ID, "2 to 1224 letters, digits or any of _+=,.@:/-")]
_Tag = Annotated[str, _matching(_TAG, "write KEY=VALUE: mcp:expose=true")]
_SessionName = Annotated[str, _matching(SESSION, "2 to 64 letters, digits or any of _+=,.@-")]


class AssumeRole(BaseModel):
    """A role to assume (AWS STS) before any other call."""

    model_config = _MODEL

    arn: Annotated[str, _matching(_ROLE, "write the ARN of a role: arn:aws:iam::123456789012:role/NAME")] = Field(
        description="The role, arn:aws:iam::ACCOUNT:role/NAME."
    )
    external_id: _ExternalId | None = Field(
        default=None, description="The external id that the role's trust policy requires. Not a secret."
    )
    source_identity: _SessionName | None = Field(
        default=None, description="The source identity in CloudTrail, 2 to 64 characters."
    )
    session_name: _SessionName = Field(default="mcp-workflows", description="The session's name, also in CloudTrail.")
    duration: Annotated[
        Duration, _checked(lambda length: _SHORTEST_SESSION <= length <= _LONGEST_SESSION, "15m to 12h")
    ] = Field(
        default=timedelta(hours=1),
        description="The length of a session, 15m to 12h, renewed in time. More than 1h needs a role with a longer "
        "maximum session duration, and is not possible from another role.",
    )

    def on_behalf_of(self, caller: str) -> Self:
        """Return the role for one caller, whose name CloudTrail shows."""
        return self.model_copy(update={"source_identity": caller, "session_name": caller})

    @property
    def account(self) -> str:
        """The account of the role."""
        return self.arn.split(":")[4]


class Rate(BaseModel):
    """A token bucket, in AWS's terms for quotas."""

    model_config = _MODEL

    bucket: float = Field(gt=0, description="The size of a burst of calls.")
    refill: float = Field(gt=0, description="The calls per second after a burst.")


class Quota(BaseModel):
    """The share of AWS's quotas for this process; quotas apply to the whole account in its Region."""

    model_config = _MODEL

    share: float = Field(default=0.5, gt=0, le=1, description="The share to use, over all replicas.")
    replicas: int = Field(
        default=1,
        gt=0,
        description="The number of processes that split the share. A PostgreSQL store counts them instead.",
    )
    start_execution: Rate | None = Field(
        default=None, description="The account's quota, if it differs from AWS's default."
    )
    describe_execution: Rate | None = Field(
        default=None, description="The account's quota, if it differs from AWS's default."
    )
    get_execution_history: Rate | None = Field(
        default=None, description="The account's quota, if it differs from AWS's default."
    )
    list_executions: Rate | None = Field(
        default=None, description="The account's quota, if it differs from AWS's default."
    )
    stop_execution: Rate | None = Field(
        default=None, description="The account's quota, if it differs from AWS's default."
    )
    send_task: Rate | None = Field(default=None, description="The account's quota, if it differs from AWS's default.")
    describe_state_machine: Rate | None = Field(
        default=None, description="The account's quota, if it differs from AWS's default."
    )


class Events(BaseModel):
    """Hints from EventBridge, which reports changes to a queue."""

    model_config = _MODEL

    queue_url: Annotated[
        str,
        _checked(
            lambda url: url.startswith(("https://", "http://")) and _QUEUE.fullmatch(urlsplit(str(url)).path), _NO_QUEUE
        ),
        _checked(_url, ""),
    ] = Field(description="The SQS queue, https://sqs.REGION.amazonaws.com/ACCOUNT/NAME.")


class Discover(BaseModel):
    """State machines that their owners have tagged as tools."""

    model_config = _MODEL

    tag: _Tag = Field(default="mcp:expose=true", description="The tag, KEY=VALUE.")
    every: Duration = Field(
        default=timedelta(minutes=5), description="How often the server looks for marked workflows."
    )

    @property
    def key_and_value(self) -> tuple[str, str]:
        """The key and the value of the tag."""
        key, _, value = self.tag.partition("=")
        return key, value


class StepFunctionsSettings(BaseModel):
    """The state machines of one account in one Region.

    Omitted settings come from boto3's usual places: `AWS_*` in the environment, the profile in `~/.aws`, the role of
    the machine. Credentials never appear here.
    """

    model_config = _MODEL

    region: Annotated[str, _matching(_REGION, "write a Region: eu-west-1")] | None = Field(
        default=None, description="The Region. Default: AWS_DEFAULT_REGION, else the profile's Region."
    )
    profile: str | None = Field(
        default=None, min_length=1, description="A profile in the configuration files of the engine's own tools."
    )
    endpoint_url: _Url | None = Field(
        default=None,
        description="The URL of the API: a VPC endpoint of Step Functions, or another engine that replaces all "
        "AWS services. Default: AWS_ENDPOINT_URL_SFN, AWS_ENDPOINT_URL, else AWS.",
    )
    assume_role: AssumeRole | None = Field(default=None, description="A role to assume first.")
    account: Account | None = Field(
        default=None, description="The account, 12 digits. Default: from assume_role, else from AWS STS."
    )
    quota: Quota | None = Field(
        default=None,
        description="How much of the provider's quotas to use. Default: half; with a local or custom endpoint, all.",
    )
    events: Events | None = Field(
        default=None, description="A queue with EventBridge's status events, which trigger polls."
    )
    discover: Discover | None = Field(default=None, description="Offer marked workflows as tools. Default: none.")
    console_url: _Url | None = Field(
        default=None, description="The URL of the console, for links. Default: the public console."
    )
    timeout_seconds: float = Field(default=8, ge=1, le=600, description="Longest total time of any call, in seconds.")
    max_connections: int = Field(default=16, ge=1, le=256, description="Maximum number of concurrent calls.")

    @model_validator(mode="before")
    @classmethod
    def _no_secrets(cls, values: Any) -> Any:  # Any: not yet validated
        secrets = sorted(name for name in _SECRETS if name in values) if isinstance(values, Mapping) else ()
        if secrets:
            raise ValueError(
                f"{', '.join(secrets)}: no credentials here; name a profile, or set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY in the environment"
            )
        return values  # pyright: ignore[reportUnknownVariableType]

    @model_validator(mode="after")
    def _the_role_is_of_the_account(self) -> Self:
        if self.account and self.assume_role and self.assume_role.account != self.account:
            raise ValueError("the role of assume_role is of another account: leave account out")
        return self

    @property
    def known_account(self) -> str | None:
        """The account in the settings, or None."""
        return self.account or (self.assume_role.account if self.assume_role else None)


LONGEST_EXPRESS = timedelta(minutes=5)  # the maximum duration of an Express workflow


class StepFunctionsOptions(BaseModel):
    """One tool on AWS Step Functions."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    express: bool = Field(
        default=False,
        description="The state machine is Express. It runs within the call and is not a task (`tasks: forbidden`).",
    )
    timeout: Duration | None = Field(
        default=None,
        description="With `express`: how long a call waits. Default and maximum: 5m, the limit of Express.",
    )
    history: bool = Field(
        default=True,
        description="Whether a poll reads the history of a running execution, for questions, gates, the current "
        "state and Map progress. Without questions, `false` saves one call of a scarce quota per "
        "poll.",
    )

    source_identity: str | None = Field(
        default=None,
        description="The source identity in CloudTrail of calls that start and stop executions: "
        "`{{principal.subject}}`. Each caller has a separate session of the engine's `assume_role`. "
        "Callers whose identity is not 2 to 64 letters, digits or _+=,.@- are refused.",
    )

    @model_validator(mode="after")
    def _only_what_counts(self) -> Self:
        if self.timeout is not None and not self.express:
            raise ValueError("timeout: only with express: true; a Standard state machine has its own TimeoutSeconds")
        if self.timeout is not None and self.timeout > LONGEST_EXPRESS:
            raise ValueError("timeout: an Express workflow ends within 5m")
        if self.express and "history" in self.model_fields_set:
            raise ValueError("history: an Express execution has none; leave it out")
        return self

    @classmethod
    def read(cls, options: Mapping[str, JSON]) -> Self:
        """Return the options of a start, which its task keeps.

        Raises:
            EngineRefused: they are invalid.
        """
        return read_options(cls, options)

    @property
    def caller(self) -> str | None:
        """The source identity after its values are filled in.

        Raises:
            EngineRefused: AWS does not accept it.
        """
        name = self.source_identity
        if name is not None and not SESSION.fullmatch(name):
            raise EngineRefused(
                "the source_identity of this tool, as it is filled in for who calls, is none that AWS takes: 2 to 64 "
                "letters, digits or any of _+=,.@-",
                final=True,
            )
        return name

    @property
    def express_timeout(self) -> timedelta:
        """The maximum wait of a call for an Express execution."""
        return self.timeout or LONGEST_EXPRESS
