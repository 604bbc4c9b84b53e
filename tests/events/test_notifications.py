"""Notifications of approvals: through the queue of deliveries, to real receivers, and shown with the question."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default as mail_policy
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiosmtpd.smtp import SMTP, AuthResult
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mcp_workflows import Tool
from mcp_workflows.access.audit import task_hash
from mcp_workflows.adapter import InputRequest, Status
from mcp_workflows.adapter.memory import Script, ScriptedAdapter
from mcp_workflows.errors import ConfigError
from mcp_workflows.events import delivery
from mcp_workflows.events.endpoints import EventSettings
from mcp_workflows.events.notifications import Channels, NotificationChannel
from mcp_workflows.receiver.attach import swap
from mcp_workflows.store.protocol import Store, open_store
from mcp_workflows.task import (
    START_GATE,
    START_KEY,
    Decision,
    Held,
    Step,
    Task,
    decide,
    hold,
    note_step,
    request_cancel,
)
from mcp_workflows.tasks.approvals import tool_digest
from mcp_workflows.testing import make_task
from tests.store.places import PostgresSchema
from tests.support.authority import Authority
from tests.support.delivering import Clock, Replica, delivering
from tests.support.endpoint import endpoint, new_secret
from tests.support.in_memory import entered, line
from tests.support.postgres_server import Postgres
from tests.support.served import Peer, peer, serving, site
from tests.support.waiting import TIMEOUT, until

pytestmark = pytest.mark.anyio

OWNER = '["c","https://login.example.com","alice"]'
BLOCK: Mapping[str, Any] = {
    "before_start": True,
    "message": "Deploy {{version}}?",
    "approvers": {"scopes": ["release-managers"]},
    "after": {"in": "2d", "then": {"escalate": {"scopes": ["directors"]}}},
    "notify": ["releases"],
}
ARGUMENTS = {"version": "s3cret-1.4"}
LOCALLY = EventSettings(allow_private=True)
WEB = "https://workflows.example.com"


def deploying(**block: Any) -> Tool:
    return Tool.model_validate(
        {"name": "deploy", "engine": "orders", "workflow": "echo", "approval": {**BLOCK, **block}}
    )


DEPLOY = deploying()


@dataclass(slots=True)
class Hook:
    """An incoming webhook of a chat: the bodies that it took, and its answers from now on."""

    url: str = ""
    status: int = 200
    taken: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    refused: int = 0
    _news: anyio.Event = field(default_factory=anyio.Event)

    async def take(self, request: Request) -> Response:
        body = await request.json()
        if self.status == 200:
            self.taken.append(body)
        else:
            self.refused += 1
        news, self._news = self._news, anyio.Event()
        news.set()
        return Response(status_code=self.status)

    async def until(self, many: int) -> None:
        with anyio.fail_after(TIMEOUT):
            while len(self.taken) < many:
                await self._news.wait()

    @property
    def texts(self) -> Sequence[str]:
        """The texts of messages of Slack."""
        return [each["text"] for each in self.taken]


@asynccontextmanager
async def hook() -> AsyncGenerator[Hook]:
    found = Hook()
    async with serving(Starlette(routes=[Route("/{path:path}", found.take, methods=["POST"])])) as url:
        found.url = url.removesuffix("/mcp") + "/services/T0/B0/s3cret-path"
        yield found


def slack(found: Hook, **more: Any) -> NotificationChannel:
    return NotificationChannel.model_validate({"slack": found.url, **more})


def held(tool: Tool = DEPLOY, clock: Clock | None = None, **fields: Any) -> Task:
    """A task that waits for its approval."""
    now = (clock or Clock())()
    new = make_task(
        **{
            "tool": tool.name,
            "owner": OWNER,
            "host": "Claude Code",
            "created": now,
            "updated": now,
            "arguments": ARGUMENTS,
            "terms": {gate: each.terms() for gate, each in tool.approvals.items()},
            **fields,
        }
    )
    request = InputRequest(method="elicitation/create", params={"message": f"Deploy {ARGUMENTS}?"}, gate=START_GATE)
    return hold(new, Held(ttl=3600, requester="", tool=tool_digest(tool)), request)


async def change(store: Store, task: Task, change: Any) -> Task:
    changed = await store.change(task.id, task.owner, change)
    assert changed is not None
    return changed


async def decided(replica: Replica, task: Task, *, approved: bool = True) -> Task:
    bob, why = '["c","https://login.example.com","bob"]', "s3cret-reason"
    decision = Decision(by=bob, at=replica.clock(), is_approved=approved, reason=why, gate=START_GATE)
    return await change(replica.store, task, partial(decide, decision=decision, declined="declined"))


@asynccontextmanager
async def notifying(
    store: Store | Path, channels: Channels, tool: Tool = DEPLOY, **settings: Any
) -> AsyncGenerator[Replica]:
    opened = open_store(f"sqlite:///{store}/tasks.db") if isinstance(store, Path) else store
    async with delivering(opened, tools={tool.name: tool}, channels=channels, **settings) as replica:
        yield replica


async def test_people_are_told_when_a_question_opens_is_reminded_escalated_and_answered_and_when_the_task_ends(
    tmp_path: Path,
) -> None:
    async with hook() as chat, notifying(tmp_path, {"releases": slack(chat)}, web_url=WEB) as replica:
        task = await replica.store.create(held(clock=replica.clock))
        for many, step in ((1, Step.REMIND), (2, Step.ESCALATE)):
            await chat.until(many)
            replica.clock.advance(hours=4)
            noting = partial(note_step, key=START_KEY, step=step, at=replica.clock())
            await change(replica.store, task, noting)
        await chat.until(3)
        await decided(replica, task)
        await chat.until(4)
        await replica.end(task)
        await chat.until(5)
        link = replica.events._executions.page_url(task.id, START_KEY)  # pyright: ignore[reportPrivateUsage]
    asked = "asked by alice in Claude Code."
    assert link is not None
    assert [text.replace(link, "LINK") for text in chat.texts[:3]] == [
        f"deploy waits for release-managers: {asked} <LINK|Open the question>",
        f"deploy still waits for release-managers: {asked} <LINK|Open the question>",
        f"deploy was escalated: it waits for release-managers or directors: {asked} <LINK|Open the question>",
    ]
    assert chat.texts[3].startswith("deploy was approved by bob at ")
    assert chat.texts[4] == f"deploy has completed: {asked}"
    for secret in (task.id, "s3cret-1.4", "s3cret-reason"):
        assert secret not in json.dumps(chat.taken)


@pytest.mark.parametrize("include", [[], ["arguments"]])
async def test_a_channel_gets_arguments_only_if_it_includes_them(tmp_path: Path, include: Sequence[str]) -> None:
    secret = new_secret()
    async with hook() as chat, endpoint(secret=secret) as program:
        audit = NotificationChannel.model_validate({"webhook": program.url, "secret": secret, "include": include})
        channels = {"releases": slack(chat, include=include), "audit": audit}
        async with notifying(tmp_path, channels, deploying(notify=["releases", "audit"])) as replica:
            task = await replica.store.create(held())
            await chat.until(1)
            await program.until(lambda: bool(program.events()))
    [body] = program.events()
    assert ("s3cret-1.4" in json.dumps(body)) == bool(include)
    assert ("s3cret-1․4" in chat.texts[0]) == bool(include)  # noqa: RUF001  # no name of a host
    assert body["name"] == "question.opened"
    assert body["data"]["task"] == task_hash(task.id)
    assert body["data"]["approvers"] == "release-managers"
    assert body["data"]["url"] is None
    assert "It is among the open questions in your MCP client." in body["data"]["text"]
    assert program.got[0].headers["webhook-id"] == body["eventId"]
    assert program.got[0].headers["x-mcp-subscription-id"] == "audit"
    assert task.id not in json.dumps(body)


async def test_names_of_others_make_no_mention_no_link_and_no_markup(tmp_path: Path) -> None:
    host = "<!channel> @channel <https://evil.example.com|click> \u202eevil\u202c *x* :x:\r\nBcc: eve@example.com"
    owner = '["c","https://login.example.com","<@U123>\\r\\nhttps://evil.example.com"]'
    async with hook() as chat, hook() as card, mailbox() as mails:
        channels = {
            "releases": slack(chat),
            "ops": NotificationChannel.model_validate({"teams": card.url}),
            "people": mails.channel(),
        }
        async with notifying(tmp_path, channels, deploying(notify=[*channels]), web_url=WEB) as replica:
            await replica.store.create(held(host=host, owner=owner))
            await chat.until(1)
            await card.until(1)
            await mails.until(1)
    [text], [message] = chat.texts, card.taken
    assert text.count("<") == 1
    assert text.rpartition(" <")[2].startswith(WEB)
    assert "@channel" not in text
    assert chat.taken[0]["mrkdwn"] is False
    [block] = chat.taken[0]["blocks"]
    [section] = block["elements"]
    assert (block["type"], section["type"]) == ("rich_text", "rich_text_section")
    assert [each["type"] for each in section["elements"]] == [
        "text",
        "text",
        "link",
    ]  # nothing is a mention or an emoji
    assert section["elements"][-1]["url"].startswith(WEB)
    content = message["attachments"][0]["content"]
    assert [each["type"] for each in content["body"]] == ["RichTextBlock"]
    assert {each["type"] for each in content["body"][0]["inlines"]} == {"TextRun"}
    assert [action["url"].startswith(WEB) for action in content["actions"]] == [True]
    [mail] = mails.mails
    assert mail["Bcc"] is None
    assert {*mail.keys()} == {
        *("From", "To", "Subject", "Date", "Message-ID", "Auto-Submitted"),
        *("MIME-Version", "Content-Type", "Content-Transfer-Encoding"),
    }
    told = [text, json.dumps(message, ensure_ascii=False), mail.get_content()]
    for each in told:
        assert not {"\u202e", "\u202c"} & set(each)
        assert "https://evil" not in each
        assert "evil.example" not in each
    assert len(mails.rejected) == 0


async def test_no_arguments_and_no_names_make_a_message_too_long_for_slack(tmp_path: Path) -> None:
    arguments, host = {f"{number}": "<&>" * 100 for number in range(50)}, "<" * 5000
    owner = json.dumps(["c", "https://login.example.com", "&" * 5000])
    async with hook() as chat, notifying(tmp_path, {"releases": slack(chat, include=["arguments"])}) as replica:
        await replica.store.create(held(arguments=arguments, host=host, owner=owner))
        await chat.until(1)
    [text] = chat.texts
    assert len(text) < 3000
    assert text.endswith("- and more: see the question")


async def test_a_card_of_teams_is_what_teams_takes(tmp_path: Path) -> None:
    async with hook() as card:
        channels = {"releases": NotificationChannel.model_validate({"teams": card.url})}
        async with notifying(tmp_path, channels, web_url=WEB) as replica:
            await replica.store.create(held())
            await card.until(1)
    [attachment] = card.taken[0]["attachments"]
    assert card.taken[0]["type"] == "message"
    assert attachment["contentType"] == "application/vnd.microsoft.card.adaptive"
    content = attachment["content"]
    assert (content["type"], content["actions"][0]["type"]) == ("AdaptiveCard", "Action.OpenUrl")
    texts = [each["text"] for each in content["body"][0]["inlines"]]
    assert texts == ["deploy", " waits for release-managers: asked by alice in Claude Code."]


# --- mail


@dataclass(slots=True, kw_only=True)
class Mailbox:
    """A mail server that keeps what it gets."""

    port: int = 0
    scheme: str = "smtp"
    host: str = "127.0.0.1"
    mails: list[EmailMessage] = field(default_factory=list[EmailMessage])
    envelopes: list[tuple[str, Sequence[str]]] = field(default_factory=list[tuple[str, Sequence[str]]])
    secured: list[bool] = field(default_factory=list[bool])
    rejected: list[str] = field(default_factory=list[str])
    reply: str = "250 OK"

    def channel(self, user: str = "") -> NotificationChannel:
        place = f"{self.scheme}://{user}{self.host}:{self.port}"
        settings = {"email": ["a@example.com", "b@example.com"], "smtp": place, "from": "workflows@example.com"}
        return NotificationChannel.model_validate(settings)

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802  # the name it has
        if not self.reply.startswith("250"):
            self.rejected.append(self.reply)
            return self.reply
        mail = message_from_bytes(envelope.content, policy=mail_policy)
        assert isinstance(mail, EmailMessage)
        self.mails.append(mail)
        self.envelopes.append((envelope.mail_from, envelope.rcpt_tos))
        self.secured.append(server.transport.get_extra_info("ssl_object") is not None)
        return self.reply

    async def until(self, many: int) -> None:
        await until(lambda: len(self.mails) >= many)


def _log_in(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
    return AuthResult(success=(data.login, data.password) == (b"user", b"p@ss/word"))


@asynccontextmanager
async def mailbox(
    certificate: tuple[Path, Path] | None = None, *, implicit: bool = False, **settings: Any
) -> AsyncGenerator[Mailbox]:
    """Serve a mailbox; with a certificate by STARTTLS, or by TLS from the first byte on."""
    found, context = Mailbox(**settings), None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
    secured: dict[str, Any] = {} if context is None or implicit else {"tls_context": context, "require_starttls": True}
    if context is not None:
        secured |= {"authenticator": _log_in, "auth_required": not implicit, "auth_require_tls": not implicit}
    make = partial(SMTP, found, hostname="mail.example.com", enable_SMTPUTF8=True, **secured)
    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0, ssl=context if implicit else None)
    async with server:
        found.port = server.sockets[0].getsockname()[1]
        yield found


async def test_a_mail_reaches_all_addresses_and_says_what_a_chat_is_told(tmp_path: Path) -> None:
    async with mailbox() as mails, notifying(tmp_path, {"releases": mails.channel()}, web_url=WEB) as replica:
        await replica.store.create(held())
        await mails.until(1)
    [mail] = mails.mails
    assert mails.envelopes == [("workflows@example.com", ["a@example.com", "b@example.com"])]
    assert mail["Subject"] == "deploy waits for release-managers"
    assert mail["Auto-Submitted"] == "auto-generated"
    first, second = mail.get_content().replace("\r\n", "\n").split("\n\n")
    assert first.strip() == "deploy waits for release-managers: asked by alice in Claude Code."
    assert second.startswith(f"Open the question: {WEB}/approvals/")


@pytest.mark.parametrize("implicit", [True, False], ids=["smtps", "starttls"])
async def test_mail_is_sent_over_tls_to_a_server_whose_certificate_is_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, implicit: bool
) -> None:
    authority = Authority(tmp_path)
    certificate = authority.issue_into(tmp_path / "tls", "server")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    scheme = "smtps" if implicit else "smtp"
    async with mailbox(certificate, implicit=implicit, scheme=scheme, host="localhost") as mails:
        channels = {"releases": mails.channel("user:p%40ss%2Fword@")}
        async with notifying(tmp_path, channels) as replica:
            await replica.store.create(held())
            await mails.until(1)
    assert mails.secured == [True]


async def test_nothing_is_mailed_in_clear_or_to_a_server_with_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look_up(host: str, port: int, *_: Any, **__: Any) -> Sequence[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    certificate = authority.issue_into(tmp_path / "tls", "server", "other.example.com")
    async with mailbox(host="mail.example.com") as plain, mailbox(certificate, host="mail.example.com") as other:
        channels = {"plain": plain.channel(), "other": other.channel()}
        async with notifying(tmp_path, channels, deploying(notify=["plain", "other"])) as replica:
            await replica.store.create(held())
            states = [await state_of(replica, name) for name in channels]
    assert [each.last_error for each in states] == ["smtp_error", "tls_error"]
    assert (plain.mails, other.mails) == ([], [])


async def test_a_mail_server_that_refuses_is_tried_again(tmp_path: Path) -> None:
    async with mailbox() as mails, notifying(tmp_path, {"releases": mails.channel()}) as replica:
        mails.reply = "554 5.7.1 not here"
        await replica.store.create(held(clock=replica.clock))
        state = await state_of(replica, "releases")
        assert state.last_error == "smtp_error"
        mails.reply = "250 OK"
        replica.clock.advance(minutes=1)
        await mails.until(1)
    assert len(mails.rejected) == 1


async def state_of(replica: Replica, channel: str) -> Any:
    """The state of a channel, as it is in the store once it was written."""
    found: Any = None
    subscription, _ = replica.events.channel_interest(channel)
    with anyio.fail_after(TIMEOUT):
        while found is None or not (found.last_error or found.last_delivery):
            found = await replica.events.subscriptions.deliveries(subscription)
            await anyio.sleep(0.05)
    return found


# --- deliveries that fail


async def test_a_dead_channel_leaves_the_question_open_and_is_shown_until_it_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with hook() as chat, notifying(tmp_path, {"releases": slack(chat)}) as replica:
        chat.status = 503
        task = await replica.store.create(held())

        async def message() -> str:
            row = await replica.store.get(task.id, task.owner)
            assert row is not None
            assert row.seen.status is Status.INPUT_REQUIRED
            return row.seen.message or ""

        for number in range(1, len(delivery.PAUSES) + 1):
            await until(lambda number=number: [each.attempts for each in replica.pending.values()] == [number])
            assert await message() == "releases could not be notified"
            replica.clock.advance(hours=3)
        await until(lambda: not replica.pending)
        assert chat.refused == len(delivery.PAUSES) + 1
        [given_up] = [each for each in replica.records if each.event == "delivery"]
        assert (given_up.outcome, given_up.tool) == ("failed", "deploy")
        assert given_up.reason == "notify.releases: http_5xx (503)"
        chat.status = 200
        later = await replica.store.create(held())
        await chat.until(1)
        await until(lambda: not replica.pending)
        row = await replica.store.get(later.id, later.owner)
    assert row is not None
    [at] = row.waiting[START_KEY].notified.values()
    assert row.seen.message == f"releases notified at {at:%Y-%m-%d %H:%M} UTC"
    assert "s3cret-path" not in caplog.text
    assert replica.outcomes("subscription") == []


@pytest.mark.parametrize("end", ["answered", "cancelled"])
async def test_a_question_that_is_over_when_its_channel_comes_back_is_not_told_any_more(
    tmp_path: Path, end: str
) -> None:
    async with hook() as chat, notifying(tmp_path, {"releases": slack(chat)}) as replica:
        chat.status = 503
        task = await replica.store.create(held(clock=replica.clock))
        await until(lambda: [each.attempts for each in replica.pending.values()] == [1])
        if end == "answered":
            await decided(replica, task, approved=False)
        else:
            await change(replica.store, task, partial(request_cancel, at=replica.clock()))
        await until(lambda: len(replica.pending) == (3 if end == "answered" else 2))
        chat.status = 200
        replica.clock.advance(minutes=1)
        await until(lambda: not replica.pending)
    told = {"answered": ["has failed: asked by", "was declined by bob"], "cancelled": ["was cancelled: asked by"]}
    assert sorted(" ".join(text.split()[1:5]) for text in chat.texts) == told[end]


async def test_only_the_last_of_several_reminders_is_told(tmp_path: Path) -> None:
    async with hook() as chat, notifying(tmp_path, {"releases": slack(chat)}) as replica:
        task = await replica.store.create(held(clock=replica.clock))
        await chat.until(1)
        chat.status = 503
        for _ in range(3):
            replica.clock.advance(hours=1)
            noting = partial(note_step, key=START_KEY, step=Step.REMIND, at=replica.clock())
            await change(replica.store, task, noting)
        await until(lambda: len(replica.pending) == 1 and all(each.attempts for each in replica.pending.values()))
        chat.status = 200
        replica.clock.advance(hours=1)
        await until(lambda: not replica.pending)
    assert [" ".join(text.split()[1:3]) for text in chat.texts] == ["waits for", "still waits"]


# --- the queue


async def test_an_event_that_was_not_delivered_before_a_crash_is_delivered_after_it(tmp_path: Path) -> None:
    async with hook() as chat:
        async with notifying(tmp_path, {"releases": slack(chat)}, delivers=False) as replica:
            await replica.store.create(held())
        async with notifying(tmp_path, {"releases": slack(chat)}) as replica:
            await chat.until(1)
            chat.status = 503
            await replica.store.create(held())
            await until(lambda: [each.attempts for each in replica.pending.values()] == [1])
            await state_of(replica, "releases")
            replica.kill()
        chat.status = 200
        clock = Clock(ahead=timedelta(minutes=5))
        async with notifying(tmp_path, {"releases": slack(chat)}, clock=clock) as replica:
            await chat.until(2)
            await until(lambda: replica.is_delivering and not replica.pending)
    assert len(chat.taken) == 2


@pytest.mark.usefixtures("processes")
async def test_two_replicas_tell_a_channel_once_and_one_takes_over_from_the_other(postgres_server: Postgres) -> None:
    place, clock = PostgresSchema(postgres_server), Clock()
    async with hook() as chat, AsyncExitStack() as stack:
        replicas = [
            await stack.enter_async_context(
                notifying(open_store(place.url), {"releases": slack(chat)}, clock=clock, web_url=WEB)
            )
            for _ in range(2)
        ]
        for number in range(6):
            await replicas[number % 2].store.create(held(clock=clock))
        await chat.until(6)
        await until(lambda: not any(replica.pending for replica in replicas))
        assert len(set(chat.texts)) == len(chat.taken) == 6  # each has a link of its own
        next(replica for replica in replicas if replica.is_delivering).kill()
        await replicas[0].store.create(held(clock=clock))
        await chat.until(7)
    assert len(set(chat.texts)) == 7


async def test_a_channel_begins_when_it_is_configured_and_is_forgotten_when_it_is_gone(tmp_path: Path) -> None:
    async with hook() as chat, hook() as other, notifying(tmp_path, {"ops": slack(other)}) as replica:
        both = {"releases": slack(chat), "ops": slack(other)}
        for _ in range(2):  # nobody is told
            await replica.store.create(held())
        await replica.use(deploying(notify=["releases", "ops"]), both)
        first = await replica.store.create(held())
        await chat.until(1)
        await other.until(1)
        await replica.use(deploying(notify=["ops"]), {"ops": slack(other)})
        with anyio.fail_after(TIMEOUT):
            while "channel releases" in await replica.store.notes_under("(deliveries)", ""):
                await anyio.sleep(0.01)
        await replica.store.create(held())
        await other.until(2)
        await replica.use(deploying(notify=["releases", "ops"]), both)
        await decided(replica, first)
        await chat.until(2)
        await until(lambda: not replica.pending)
        notes = await replica.store.notes_under("(deliveries)", "")
    assert len(chat.taken) == 2, "the question of the time without it is not told"
    assert chat.texts[1].startswith("deploy was approved by bob")
    assert notes.keys() == {"channel releases", "channel ops"}


async def test_a_channel_without_tools_and_one_of_another_tool_are_told_nothing(tmp_path: Path) -> None:
    async with (
        hook() as chat,
        hook() as other,
        notifying(tmp_path, {"releases": slack(chat), "other": slack(other)}) as replica,
    ):
        await replica.store.create(held())
        await replica.ask(await replica.task(tool="deploy", owner=OWNER), "a question without an approval")
        await chat.until(1)
        await until(lambda: not replica.pending)
    assert (len(chat.taken), len(other.taken)) == (1, 0)


# --- with clients

GATED = Tool.model_validate(
    {
        "name": "ship",
        "engine": "memory",
        "workflow": "Ship",
        "questions": {
            "release": {
                "message": "Release?",
                "when": {},
                "send": {},
                "decline": {},
                "approval": {"approvers": {"scopes": ["approve"]}, "notify": ["releases"]},
            }
        },
    }
)


@asynccontextmanager
async def served(
    folder: Path, tool: Tool, script: Script, channels: Channels, *tokens: str, **settings: Any
) -> AsyncGenerator[list[Peer]]:
    async with AsyncExitStack() as stack:
        found = await stack.enter_async_context(
            site(
                store=f"sqlite:///{folder}/tasks.db",
                tools=[tool],
                adapters={"memory": ScriptedAdapter(script)},
                authenticated=True,
                notify=channels,
                **settings,
            )
        )
        yield [await stack.enter_async_context(peer(found.url, token=token)) for token in tokens]


def in_memory(**block: Any) -> Tool:
    return deploying(**{"approvers": {"scopes": ["approve"]}, **block}).model_copy(update={"engine": "memory"})


async def test_a_question_is_told_and_everybody_who_sees_the_task_reads_when(tmp_path: Path) -> None:
    script = Script()
    async with (
        hook() as chat,
        served(tmp_path, in_memory(), script, {"releases": slack(chat)}, "anna", "bob+approve") as [anna, bob],
    ):
        task_id = (await anna.call("deploy", ARGUMENTS)).result["taskId"]
        await chat.until(1)
        with anyio.fail_after(TIMEOUT):
            while "notified" not in (await anna.get(task_id))["statusMessage"]:
                await anyio.sleep(0.05)
        seen, asked = await anna.get(task_id), await bob.get(task_id)
        script.succeed({})
        await bob.answer(task_id, **{START_KEY: {"action": "accept", "content": {}}})
        await chat.until(3)
    assert seen["statusMessage"].startswith("waits for approve (releases notified at 20")
    assert asked["statusMessage"].startswith("releases notified at 20")
    assert [text.split(":")[0] for text in chat.texts[::2]] == ["deploy waits for approve", "deploy has completed"]
    assert chat.texts[1].startswith("deploy was approved by bob at ")


async def test_people_are_reminded_and_a_question_is_declined_in_time_by_itself(tmp_path: Path) -> None:
    tool = in_memory(remind="1s", after={"in": "3s", "then": "decline"})
    async with hook() as chat, served(tmp_path, tool, Script(), {"releases": slack(chat)}, "anna") as [anna]:
        await anna.call("deploy", ARGUMENTS)
        with anyio.fail_after(TIMEOUT):
            while not any("has failed" in text for text in chat.texts):
                await chat.until(len(chat.taken) + 1)
    assert chat.texts[1].startswith("deploy still waits for approve: ")
    [declined] = [text for text in chat.texts if "was declined" in text]
    assert declined.startswith("deploy was declined as nobody decided in time at ")


async def test_a_gate_that_opens_midway_and_the_end_are_told_although_nobody_polls(tmp_path: Path) -> None:
    script = Script()
    async with (
        hook() as chat,
        served(tmp_path, GATED, script, {"releases": slack(chat)}, "anna", "bob+approve") as [anna, bob],
    ):
        task_id = (await anna.call("ship", {})).result["taskId"]
        script.open_gate("release")
        await chat.until(1)
        await bob.answer(task_id, **{"release.1": {"action": "accept", "content": {}}})
        await chat.until(2)
        script.succeed({})
        await chat.until(3)
    assert [text.split()[1] for text in chat.texts] == ["waits", "was", "has"]


async def test_an_approver_who_polls_streams_or_has_a_webhook_hears_of_a_start_to_approve(tmp_path: Path) -> None:
    script, name = Script(), "task.input_required"
    clients = served(tmp_path, in_memory(notify=[]), script, {}, "anna", "bob+approve", events=LOCALLY)
    async with clients as [anna, bob], endpoint() as receiver:
        delivery = {"mode": "webhook", "url": receiver.url, "secret": receiver.secret}
        wanted: dict[str, Any] = {"name": name, "arguments": {}, "cursor": None}
        begin = (await bob.send("events/poll", wanted)).result
        await bob.send("events/subscribe", {**wanted, "delivery": delivery})
        async with bob.stream("events/stream", wanted) as (_, frames):
            assert (await anext(frames))["method"] == "notifications/events/active"
            task_id = (await anna.call("deploy", ARGUMENTS)).result["taskId"]
            streamed = (await anext(frames))["params"]
        await receiver.until(lambda: bool(receiver.events()))
        [polled] = (await bob.send("events/poll", {**wanted, "cursor": begin["cursor"]})).result["events"]
        annas = (await anna.send("events/poll", {**wanted, "cursor": begin["cursor"]})).result
    [delivered] = receiver.events()
    assert polled["eventId"] == streamed["eventId"] == delivered["eventId"]
    assert {each["data"]["taskId"] for each in (polled, streamed, delivered)} == {task_id}
    assert (polled["data"]["key"], polled["data"]["startedBy"]) == (START_KEY, "anna")
    assert annas["events"] == []


@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
async def test_clients_of_each_revision_hear_of_a_start_to_approve_and_of_no_internal_event(
    tmp_path: Path, version: str
) -> None:
    tool = in_memory(notify=[], approvers={}, requester_may_approve=True)
    store = f"sqlite:///{tmp_path}/tasks.db"
    wanted: Mapping[str, Any] = {"name": "task.input_required", "arguments": {}}
    async with entered([tool], store=store) as (server, _), line(server, version) as client:
        begin = (await client.send("events/poll", wanted))["result"]
        await client.send("tools/call", {"name": "deploy", "arguments": ARGUMENTS})
        [event] = (await client.send("events/poll", {**wanted, "cursor": begin["cursor"]}))["result"]["events"]
        refused = [await client.send("events/poll", {"name": name}) for name in (".reminded", ".answered")]
    assert event["data"]["tool"] == "deploy"
    assert event["data"]["message"].startswith("Deploy")
    assert ["error" in each for each in refused] == [True, True]


# --- settings


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "needs one of slack, teams, webhook, email"),
        ({"slack": "https://s3cret.example.com", "teams": "https://s3cret.example.com"}, "it is one channel"),
        ({"slack": "http://s3cret.example.com/x"}, "must be a URL: https://"),
        ({"slack": "https://user:s3cret@example.com/x"}, "must be a URL: https://"),
        ({"teams": "s3cret"}, "must be a URL: https://"),
        ({"webhook": "https://example.com"}, "webhook needs a secret"),
        ({"webhook": "https://example.com", "secret": "s3cret"}, "secret: must be whsec_"),
        ({"email": ["a@example.com"]}, "email needs smtp and from"),
        ({"email": ["a@example.com\r\nBcc: s3cret@example.com"]}, "must be an address"),
        ({"email": ["a@example.com"], "from": "b@example.com", "smtp": "http://s3cret"}, "smtps:// or smtp://"),
        ({"email": ["a@example.com"], "from": "b@example.com", "smtp": "smtp://s3cret:70000"}, "smtps:// or smtp://"),
    ],
)
def test_a_channel_that_cannot_work_is_refused_and_its_secrets_stay_secret(
    settings: Mapping[str, Any], text: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        NotificationChannel.model_validate(settings)
    assert text in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_no_secret_of_a_channel_is_in_its_repr() -> None:
    settings = {"email": ["a@example.com"], "smtp": "smtps://u:s3cret@example.com", "from": "b@example.com"}
    assert "s3cret" not in repr(NotificationChannel.model_validate(settings))


async def test_a_library_user_gives_channels_and_swaps_them(tmp_path: Path) -> None:
    script, store = Script(), f"sqlite:///{tmp_path}/tasks.db"
    adapters = {"memory": ScriptedAdapter(script)}
    async with hook() as chat, hook() as other:
        with pytest.raises(ConfigError, match=r"tool 'deploy': approval.notify: no channel named 'releases'"):
            async with site(store=store, tools=[in_memory()], adapters=adapters, notify={"release": slack(chat)}):
                pass
        async with (
            site(
                store=store,
                tools=[in_memory()],
                adapters=adapters,
                authenticated=True,
                notify={"releases": slack(chat)},
            ) as found,
            peer(found.url, token="anna") as anna,
        ):
            await anna.call("deploy", ARGUMENTS)
            await chat.until(1)
            await swap(
                found.workflows,
                tools=[in_memory()],
                engines=found.workflows.adapters,
                notify={"releases": slack(other)},
            )
            await anna.call("deploy", ARGUMENTS)
            await other.until(1)
    assert (len(chat.taken), len(other.taken)) == (1, 1)


def test_a_tool_is_the_same_for_an_approver_if_only_its_channels_changed() -> None:
    assert tool_digest(deploying()) == tool_digest(deploying(notify=["ops"]))
    assert tool_digest(deploying()) != tool_digest(deploying(reason="required"))
    shipping = GATED.model_dump(by_alias=True, exclude_defaults=True)
    shipping["questions"]["release"]["approval"]["notify"] = ["ops"]
    assert tool_digest(GATED) == tool_digest(Tool.model_validate(shipping))
