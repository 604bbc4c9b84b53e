"""Notifications of approvals: the configured channels, the content, and how it is sent.

A channel gets only what all its readers may see: the tool, the approvers, the requester, and a link that requires a
login. The message of a question may contain arguments, so it is sent only with `include`, like the arguments. The task
id is never sent: it is the only protection of an anonymous caller's task.

Sources: docs.slack.dev, "Formatting message text" and "Rich text block"; learn.microsoft.com, "Create Incoming
Webhooks" and the schema of Adaptive Cards; RFC 3834 and RFC 5322 for mail.
"""

from __future__ import annotations

import logging
import re
import smtplib
import ssl
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from email.message import EmailMessage
from email.policy import SMTP as MAIL_POLICY
from functools import partial
from types import TracebackType
from typing import Annotated, Final, Literal, Self, TypeAlias, cast
from urllib.parse import SplitResult, unquote, urlsplit

import anyio
from anyio import to_thread
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, model_validator

from mcp_workflows.access import is_loopback, person_of
from mcp_workflows.access.audit import task_hash
from mcp_workflows.adapter import JSON
from mcp_workflows.adapter.display_text import cleaned, quoted
from mcp_workflows.adapter.redaction import mask
from mcp_workflows.events.endpoints import EndpointFailed, Endpoints, EventSettings
from mcp_workflows.task import EventName, LoggedEvent, Task, question_digest
from mcp_workflows.tasks.approvals import decision_text
from mcp_workflows.tools.json_schema import did_you_mean
from mcp_workflows.tools.questions import argument_lines
from mcp_workflows.tools.tool import AnyTool
from mcp_workflows.wire import events as wire
from mcp_workflows.wire.events import Trouble

logger = logging.getLogger(__name__)

CHANNEL_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
NOTIFIED_OF: Final[tuple[str, ...]] = (
    EventName.INPUT_REQUIRED,
    EventName.REMINDED,
    EventName.ESCALATED,
    EventName.ANSWERED,
    EventName.ENDED,
)
"""The events that channels are notified of."""

MAIL_WITHIN: Final = 30.0  # seconds for one mail
_MAIL_TIMEOUT: Final = 15.0  # seconds for one reply of the server
_MAILS_AT_ONCE: Final = 8
_KINDS: Final = ("slack", "teams", "webhook", "email")
_PORTS: Final = {"smtps": smtplib.SMTP_SSL_PORT, "smtp": 587}
_ADDRESS: Final = re.compile(r"[\w.!#$%&'*+/=?^`{|}~-]{1,64}@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*", re.ASCII)
_PLAIN: Final = re.compile(r"[\w@+-]+(\.[\w@+-]+)*( [\w@+-]+(\.[\w@+-]+)*)?", re.ASCII)
_MOST: Final = 100  # characters of a name
_MOST_ARGUMENTS: Final = 1200  # characters as sent: Slack accepts 3,000 in a text, including names and link
_OPEN: Final = "Open the question"
_ELSEWHERE: Final = "It is among the open questions in your MCP client."
_EVENTS: Final[Mapping[str, str]] = {
    EventName.INPUT_REQUIRED: "question.opened",
    EventName.REMINDED: "question.reminded",
    EventName.ESCALATED: "question.escalated",
    EventName.ANSWERED: "question.answered",
    EventName.ENDED: "task.ended",
}
_ENDS: Final[Mapping[str, str]] = {"completed": "has completed", "failed": "has failed", "cancelled": "was cancelled"}
_AT: Final = re.compile(r"(?<!\w)@")
_DOT: Final = re.compile(r"(?<=\w)\.(?=\w)")


def _address(text: str) -> str:
    if not _ADDRESS.fullmatch(text):
        raise ValueError("must be an address, such as workflows@example.com")
    return text


Address = Annotated[str, AfterValidator(_address)]


class NotificationChannel(BaseModel):
    """A destination for notifications of approvals: Slack, Teams, a webhook or mail."""

    # errors of pydantic would quote secrets
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, hide_input_in_errors=True)

    slack: SecretStr | None = Field(
        default=None, description="The URL of a Slack incoming webhook.", examples=["${file:slack-url}"]
    )
    teams: SecretStr | None = Field(
        default=None, description='The URL of a Teams workflow "When a Teams webhook request is received".'
    )
    webhook: SecretStr | None = Field(
        default=None, description="The URL of your own receiver. Requests are signed like those of MCP Events."
    )
    secret: SecretStr | None = Field(
        default=None,
        description="With `webhook`: the signing secret, `whsec_` plus 24 to 64 bytes in base64.",
        examples=["${WEBHOOK_SECRET}"],
    )
    email: Annotated[list[Address], Field(min_length=1)] | None = Field(
        default=None, description="The addresses that receive mail.", examples=[["releases@example.com"]]
    )
    smtp: SecretStr | None = Field(
        default=None,
        description="With `email`: the mail server, `smtps://user:password@host:465`, or `smtp://host:587` with "
        "STARTTLS.",
    )
    from_: Address | None = Field(alias="from", default=None, description="With `email`: the sender's address.")
    include: list[Literal["arguments"]] = Field(
        default_factory=list[Literal["arguments"]],
        description="Content to add to notifications: the `arguments` of the call.",
    )

    @model_validator(mode="after")
    def _is_one_kind(self) -> Self:
        if len([kind for kind in _KINDS if getattr(self, kind)]) != 1:
            raise ValueError(f"needs one of {', '.join(_KINDS)}: it is one channel")
        if bool(self.email) != bool(self.smtp) or bool(self.email) != bool(self.from_):
            raise ValueError("email needs smtp and from; other channels have neither")
        if bool(self.webhook) != bool(self.secret):
            raise ValueError("webhook needs a secret; other channels have none")
        if self.secret and wire.secret_bytes(self.secret.get_secret_value()) is None:
            raise ValueError("secret: must be whsec_ and base64 of 24 to 64 bytes")
        if not _is_place(self.place, is_mail=bool(self.email)):
            text = "smtps:// or smtp://, with a host" if self.email else "https://, or http:// on this machine"
            raise ValueError(f"{'smtp' if self.email else self.kind}: must be a URL: {text}")
        return self

    @property
    def kind(self) -> str:
        """The kind of the channel: slack, teams, webhook or email."""
        return next(kind for kind in _KINDS if getattr(self, kind))

    @property
    def place(self) -> SplitResult:
        """The URL that notifications are sent to; it is a secret."""
        url = self.slack or self.teams or self.webhook or self.smtp
        assert url is not None, "it is one of these"
        return urlsplit(url.get_secret_value())

    @property
    def host(self) -> str:
        """The host of that URL."""
        return self.place.hostname or ""

    @property
    def path(self) -> SecretStr:
        """The path and query of that URL, the only protection of a chat."""
        return SecretStr(f"{self.place.path}?{self.place.query}".strip("/?"))


def _is_place(place: SplitResult, *, is_mail: bool) -> bool:
    try:
        _ = place.port
    except ValueError:
        return False
    text = place.geturl()
    if not place.hostname or not text.isascii() or not text.isprintable() or " " in text or place.fragment:
        return False
    if is_mail:
        return place.scheme in _PORTS and (place.username is None) == (place.password is None)
    is_safe = place.scheme == "https" or (place.scheme == "http" and is_loopback(place.hostname))
    return is_safe and place.username is None


Channels: TypeAlias = Mapping[str, NotificationChannel]
"""The configured channels by name."""


def no_channel(name: str, known: Collection[str]) -> str:
    """Return the error text for an unknown channel."""
    return f"no channel named {name!r}{did_you_mean(name, known)} (channels: {', '.join(sorted(known)) or 'none'})"


# --- content


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """The content of a notification. Markup, mentions and links other than `url` cannot appear in it."""

    event: LoggedEvent
    key: str  # of the question; empty: the task has ended
    name: str
    tool: str
    text: str  # follows the tool's name
    url: str | None  # of the question's page
    facts: Mapping[str, JSON]
    arguments: Sequence[str] = ()  # lines


def channels_of(tool: AnyTool) -> frozenset[str]:
    """Return the channels that are notified of a tool's approvals."""
    return frozenset(name for approval in tool.approvals.values() for name in approval.notify)


def question_of(event: LoggedEvent, task: Task, channel: str, tool: AnyTool) -> str | None:
    """Return the key of the question to notify a channel of; None: send nothing.

    An empty key stands for the end of the task, which is sent to each channel that was notified of one of its
    questions.
    """
    gates = {gate for gate, approval in tool.approvals.items() if channel in approval.notify}
    if event.name == EventName.ENDED:
        is_known = channel in task.channels or any(each.gate in gates for each in task.decisions.values())
        return "" if task.ended and is_known else None
    if event.name == EventName.ANSWERED:
        decided = [key for key, each in task.decisions.items() if each.gate in gates]
        return next((key for key in decided if question_digest(task.id, key) == event.key), None)
    if task.cancel_requested or task.ended:
        return None
    for key, request in task.seen.requests.items():
        waiting = task.waiting.get(key)
        if waiting is None or request.gate not in gates or question_digest(task.id, key) != event.key:
            continue
        latest = {EventName.REMINDED: waiting.reminded, EventName.ESCALATED: waiting.escalated}
        return key if latest.get(cast("EventName", event.name), event.at) == event.at else None
    return None


def notification_of(
    event: LoggedEvent, task: Task, key: str, *, url: str | None, outcome: str, with_arguments: bool
) -> Notification:
    """Return the notification of an event about a question; `outcome` is that of an ended task."""
    asked_by, host = person_of(task.owner)[1], task.host
    facts: dict[str, JSON] = {"task": task_hash(task.id), "tool": task.tool, "requester": _line(asked_by)}
    facts |= {"host": _line(host)} if host else {}
    asked = f"asked by {_name(asked_by)}{f' in {_name(host)}' if host else ''}"
    arguments: Sequence[str] = ()
    if not key:
        text = f"{_ENDS[outcome]}: {asked}."
        facts |= {"status": outcome}
    elif event.name == EventName.ANSWERED:
        decision = task.decisions[key]
        text = f"was {decision_text(replace(decision, reason=None), named=_name)}: {asked}."
        by = None if decision.by is None else _line(person_of(decision.by)[1])
        facts |= {"question": event.key, "approved": decision.is_approved, "by": by}
    else:
        terms, waiting = task.terms_of(key), task.waiting[key]
        names = [terms.approvers if terms else "", (terms.escalates_to if terms and waiting.escalated else None) or ""]
        approvers = _line(" or ".join(dict.fromkeys(filter(None, names))))
        verb = {EventName.REMINDED: "still waits", EventName.ESCALATED: "was escalated: it waits"}
        text = f"{verb.get(cast('EventName', event.name), 'waits')} for {approvers}: {asked}."
        text += "" if url else f" {_ELSEWHERE}"
        facts |= {"approvers": approvers, "question": event.key, "url": url}
        given = cast("Mapping[str, JSON]", task.arguments or {})
        if with_arguments and given:
            arguments = [_harmless(line) for line in argument_lines(given)]
            facts |= {"arguments": given}
    is_open = key and event.name != EventName.ANSWERED
    return Notification(
        event=event,
        key=key,
        name=_EVENTS[event.name],
        tool=task.tool,
        text=text,
        url=url if is_open else None,
        facts=facts,
        arguments=arguments,
    )


def _line(text: str) -> str:
    return " ".join(cleaned(text, _MOST).split())


def _name(text: str) -> str:
    """Return a name chosen by others: one or two plain words unchanged, anything else quoted, never a link."""
    return _harmless(text if len(text) <= _MOST and _PLAIN.fullmatch(text) else quoted(text, _MOST))


def _harmless(text: str) -> str:
    """Return a text that no reader turns into a link: mail programs and chats look for `://` and host names."""
    return _DOT.sub("․", text.replace("://", ": //"))  # noqa: RUF001  # a character that looks like a dot


def _bounded(lines: Sequence[str]) -> Sequence[str]:
    found, left = list[str](), _MOST_ARGUMENTS
    for line in lines:
        left -= len(line)
        if left < 0:
            return [*found, "- and more: see the question"]
        found.append(line)
    return found


# --- sending


class Sender:
    """Sends notifications; enter it before use."""

    def __init__(self) -> None:
        self._endpoints = Endpoints(EventSettings(allow_private=True))
        self._mails = anyio.CapacityLimiter(_MAILS_AT_ONCE)

    async def __aenter__(self) -> Self:
        await self._endpoints.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._endpoints.__aexit__(kind, error, trace)

    async def send(self, name: str, channel: NotificationChannel, told: Notification, now: datetime) -> None:
        """Send a notification to the channel of this name.

        Raises:
            EndpointFailed: the channel did not accept it.
        """
        if channel.email:
            await self._mail(channel, mail_of(told, channel))
            return
        body = wire.body_of(_BODIES[channel.kind](told))
        headers = {"content-type": "application/json"}
        if channel.secret is not None:
            secrets = [channel.secret.get_secret_value()]
            headers = wire.headers_of(secrets, message_id=told.event.id, subscription_id=name, sent=now, body=body)
        await self._endpoints.post(channel.place.geturl(), body, headers)

    async def _mail(self, channel: NotificationChannel, message: EmailMessage) -> None:
        send = partial(_send_mail, channel.place, message)
        try:
            with anyio.fail_after(MAIL_WITHIN):
                refused = await to_thread.run_sync(send, abandon_on_cancel=True, limiter=self._mails)
        except TimeoutError:
            raise EndpointFailed(Trouble.TIMEOUT) from None
        except ssl.SSLError as error:
            raise EndpointFailed(Trouble.TLS, detail=str(error)) from None
        except smtplib.SMTPResponseException as error:
            said = error.smtp_error.decode("utf-8", "replace") if isinstance(error.smtp_error, bytes) else ""
            raise EndpointFailed(Trouble.MAIL, error.smtp_code, detail=mask(cleaned(said, 200))) from None
        except (smtplib.SMTPException, ValueError) as error:
            raise EndpointFailed(Trouble.MAIL, detail=mask(cleaned(str(error), 200))) from None
        except OSError as error:
            raise EndpointFailed(Trouble.REFUSED, detail=str(error)) from None
        if refused:
            logger.warning("the mail server refused %d of the addresses of a channel", refused)


def slack_body(told: Notification) -> Mapping[str, JSON]:
    """Return a Slack message with rich text, which has no markup. `text` is for receivers that ignore blocks."""
    link = f" <{_escaped(told.url)}|{_OPEN}>" if told.url else ""
    lines = "".join(f"\n{line}" for line in _bounded([_escaped(line) for line in told.arguments]))
    text = f"{_escaped(told.tool)} {_escaped(told.text)}{link}{lines}"
    runs: list[JSON] = [{"type": "text", "text": told.tool, "style": {"bold": True}}, _slack_run(f" {told.text} ")]
    runs += [{"type": "link", "url": told.url, "text": _OPEN}] if told.url else []
    runs += [_slack_run(f"\n{line}") for line in _bounded(told.arguments)]
    block: JSON = {"type": "rich_text", "elements": [{"type": "rich_text_section", "elements": runs}]}
    return {"text": text, "mrkdwn": False, "blocks": [block], "unfurl_links": False, "unfurl_media": False}


def _slack_run(text: str) -> Mapping[str, JSON]:
    return {"type": "text", "text": text}


def _escaped(text: str) -> str:
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _AT.sub("＠", escaped)  # noqa: RUF001  # `@channel` is a mention in Slack-compatible servers


def teams_body(told: Notification) -> Mapping[str, JSON]:
    """Return a Teams message with an Adaptive Card. Its texts are runs, which have no Markdown."""
    runs: list[JSON] = [{"type": "TextRun", "text": told.tool, "weight": "Bolder"}, _run(f" {told.text}")]
    lines: list[JSON] = [{"type": "RichTextBlock", "inlines": [_run(line)]} for line in _bounded(told.arguments)]
    card: dict[str, JSON] = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.2",
        "body": [{"type": "RichTextBlock", "inlines": runs}, *lines],
    }
    if told.url:
        card["actions"] = [{"type": "Action.OpenUrl", "title": _OPEN, "url": told.url}]
    attachment: JSON = {
        "contentType": "application/vnd.microsoft.card.adaptive",
        "contentUrl": None,
        "content": card,
    }
    return {"type": "message", "attachments": [attachment]}


def _run(text: str) -> Mapping[str, JSON]:
    return {"type": "TextRun", "text": text}


def webhook_body(told: Notification) -> Mapping[str, JSON]:
    """Return the event for a program, in the format of MCP Events, without the task id."""
    data = {**told.facts, "text": f"{told.tool} {told.text}"}
    return wire.occurrence(wire.Occurrence(event_id=told.event.id, name=told.name, at=told.event.at, data=data))


_BODIES: Final = {"slack": slack_body, "teams": teams_body, "webhook": webhook_body}


def mail_of(told: Notification, channel: NotificationChannel) -> EmailMessage:
    """Return the mail. Its id is the event's, so some mail programs show a duplicate only once."""
    assert channel.from_ is not None, "a channel with mail has it"
    message = EmailMessage(policy=MAIL_POLICY)
    message["From"] = channel.from_
    message["To"] = ", ".join(channel.email or ())
    message["Subject"] = f"{told.tool} {told.text.partition(': asked by ')[0]}"
    message["Date"] = told.event.at
    message["Message-ID"] = f"<{told.event.id}@{channel.from_.rpartition('@')[2]}>"
    message["Auto-Submitted"] = "auto-generated"  # prevents automatic replies
    parts = [
        f"{told.tool} {told.text}",
        "\n".join(_bounded(told.arguments)),
        f"{_OPEN}: {told.url}" if told.url else "",
    ]
    message.set_content("\n\n".join(filter(None, parts)) + "\n")
    return message


def _send_mail(place: SplitResult, message: EmailMessage) -> int:
    """Send a mail and return the number of refused addresses; blocks."""
    host, port = place.hostname or "", place.port or _PORTS[place.scheme]
    trusted = ssl.create_default_context()
    if place.scheme == "smtps":
        server: smtplib.SMTP = smtplib.SMTP_SSL(host, port, timeout=_MAIL_TIMEOUT, context=trusted)
    else:
        server = smtplib.SMTP(host, port, timeout=_MAIL_TIMEOUT)
    with server:
        server.ehlo_or_helo_if_needed()
        if place.scheme == "smtp" and not (is_loopback(host) and not server.has_extn("starttls")):
            server.starttls(context=trusted)  # fails if the server has no TLS: nothing is sent in the clear
        if place.username and place.password:
            server.login(unquote(place.username), unquote(place.password))
        return len(server.send_message(message))
