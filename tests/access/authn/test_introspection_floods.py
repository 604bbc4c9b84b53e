"""Made-up tokens in masses: whose token is good waits neither for them nor behind them."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_workflows.access.authn.introspection import IntrospectionVerifier
from mcp_workflows.access.authn.settings import AuthSettings
from mcp_workflows.access.authn.verifier import Verifier, verifier
from mcp_workflows.errors import IssuerUnavailable, TokenRefused
from tests.access.authn.test_identity import ALICE, HERE, Desk
from tests.access.authn.test_issuers import Clock
from tests.support.identified import house
from tests.support.tokens import KeyServer

pytestmark = pytest.mark.anyio

TURNS = "mcp_workflows.access.authn.introspection"
AT_ONCE, WAITING, OF_ONE = 3, 3, 4  # instead of the real ones, as each is a request


@dataclass(slots=True)
class Busy:
    """An issuer that takes its time with tokens it does not know, as long as a test says."""

    desk: Desk
    slow: threading.Event = field(default_factory=threading.Event)
    held: list[str] = field(default_factory=list[str])

    def answer(self, form: Mapping[str, str], known: str) -> Any:
        """What it says of a token."""
        if form["token"] not in self.desk.answers:
            self.held.append(form["token"])
            self.slow.wait(20)
        return self.desk.answer(form, known)


@pytest.fixture
def busy(key_server: KeyServer, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Busy:
    for name, number in {"MOST_QUESTIONS": AT_ONCE, "MOST_WAITING": WAITING, "MOST_OF_ONE": OF_ONE}.items():
        monkeypatch.setattr(f"{TURNS}.{name}", number)
    found = Busy(Desk(key_server, f"flood-{abs(hash(request.node.nodeid))}"))
    key_server.asked[found.desk.path] = found.answer
    return found


def asked_from(busy: Busy, addresses: list[str | None]) -> Verifier:
    """Who verifies the tokens that come from the last of these addresses."""
    settings = AuthSettings.model_validate({"introspection": [busy.desk.settings(cache="0s")]})
    return verifier(settings, HERE, asker=lambda: addresses[-1])


@asynccontextmanager
async def flood(busy: Busy, asked: Verifier, many: int) -> AsyncGenerator[None]:
    """While so many made-up tokens are asked about."""
    async with anyio.create_task_group() as group:
        for number in range(many):
            group.start_soon(_verified, asked, f"made-up-{number}")
        with anyio.fail_after(60):
            while len(busy.held) < min(many, AT_ONCE):
                await anyio.sleep(0.005)
        try:
            yield
        finally:
            group.cancel_scope.cancel()
            busy.slow.set()


async def _verified(asked: Verifier, token: str) -> None:
    with pytest.raises((TokenRefused, IssuerUnavailable)):
        await asked.verify(token)


async def test_whose_token_was_good_before_does_not_wait_behind_made_up_ones(busy: Busy) -> None:
    busy.desk.answers["good"] = ALICE
    asked = asked_from(busy, [None])
    await asked.verify("good")
    async with flood(busy, asked, AT_ONCE + WAITING):
        with pytest.raises(IssuerUnavailable, match="too many questions"):
            await asked.verify("another-made-up")
        for _ in range(3):
            assert (await asked.verify("good")).subject == "alice"
        busy.desk.answers["good"] = {"active": False}
        with pytest.raises(TokenRefused, match="not active"):
            await asked.verify("good")


async def test_one_address_leaves_room_for_the_new_tokens_of_others(busy: Busy) -> None:
    busy.desk.answers["new"] = ALICE
    addresses: list[str | None] = ["192.0.2.1"]
    asked, found = asked_from(busy, addresses), list[str | None]()

    async def come() -> None:
        found.append((await asked.verify("new")).subject)

    async with flood(busy, asked, OF_ONE):
        with pytest.raises(IssuerUnavailable, match="too many questions"):
            await asked.verify("another-made-up")
        addresses.append("192.0.2.2")
        async with anyio.create_task_group() as group:
            group.start_soon(come)
            await anyio.wait_all_tasks_blocked()
            busy.slow.set()
    assert found == ["alice"]


async def test_a_token_stays_known_while_its_issuer_cannot_be_asked(busy: Busy) -> None:
    busy.desk.answers["good"] = ALICE
    clock = Clock()
    asked: IntrospectionVerifier = busy.desk.timed(clock, cache="10s")
    await asked.verify("good")
    busy.desk.answers["good"] = None
    clock.now += 10
    with pytest.raises(IssuerUnavailable, match="answers 500"):
        await asked.verify("good")
    busy.desk.answers["good"] = ALICE
    with pytest.raises(IssuerUnavailable, match="answers 500"):
        await asked.verify("good")
    clock.now += 1
    assert (await asked.verify("good")).subject == "alice"
    assert len(busy.desk.forms) == 3, "who did not answer is not asked again at once"


async def test_over_http_strangers_are_told_to_come_later_and_users_are_let_in(
    tmp_path: Path, busy: Busy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{TURNS}.MOST_OF_ONE", AT_ONCE)
    async with house(tmp_path, {"introspection": [busy.desk.settings(cache="0s", audience=HERE)]}) as here:
        busy.desk.answers["good"] = ALICE
        assert (await here.ping("good")).status_code == 200
        async with anyio.create_task_group() as group:
            for number in range(AT_ONCE):
                group.start_soon(here.ping, f"made-up-{number}")
            with anyio.fail_after(60):
                while len(busy.held) < AT_ONCE:
                    await anyio.sleep(0.005)
            refused = await here.ping("another-made-up", {"x-forwarded-for": "192.0.2.2"})
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
            assert (await here.ping("good")).status_code == 200
            busy.slow.set()


async def test_made_up_tokens_on_other_paths_keep_nobody_out(tmp_path: Path, busy: Busy) -> None:
    async with house(tmp_path, {"introspection": [busy.desk.settings(cache="0s", audience=HERE)]}) as here:
        busy.desk.answers["new"] = ALICE
        sent = list[int]()

        async def send(number: int, path: str) -> None:
            headers = {"authorization": f"Bearer made-up-{number}"}
            sent.append((await here.http.post(here.url.replace("/mcp", path), headers=headers)).status_code)

        async with anyio.create_task_group() as group:
            with anyio.fail_after(60):
                for number in range(OF_ONE + WAITING):
                    for path in ("/healthz", "/engines/memory/callback", "/nothing-here"):
                        group.start_soon(send, number, path)
                assert (await here.ping("new")).status_code == 200
                while len(sent) < 3 * (OF_ONE + WAITING):
                    await anyio.sleep(0.005)
            busy.slow.set()
        assert busy.held == []
