"""The setting of the owner: a store with tasks of people is opened only with the setting that they were made with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from mcp_workflows.access import ANONYMOUS, LOCAL, owner_id
from mcp_workflows.access.authn.settings import Owner
from mcp_workflows.errors import StoreUnusable
from mcp_workflows.store.sqlite.store import SQLiteStore
from mcp_workflows.testing import make_task
from tests.support.in_memory import entered

pytestmark = pytest.mark.anyio

WITH_CLIENT = owner_id(client="chat", issuer="https://id", subject="ada")
PERSON = owner_id(client=None, issuer="https://id", subject="ada")
SERVICE = owner_id(client="robot", issuer="https://id", subject=None)


async def holding(folder: Path, owners: Sequence[str]) -> str:
    """The URL of a store with a task of each owner."""
    url = f"sqlite:///{folder}/tasks.db"
    async with SQLiteStore(url) as store:
        for owner in owners:
            await store.create(make_task(owner=owner))
    return url


async def opened(url: str, owner: Owner | None) -> None:
    async with entered([], store=url, owner=owner):
        pass


@pytest.mark.parametrize("first", Owner)
async def test_another_setting_is_refused_with_what_to_do_while_there_are_tasks_of_people(
    tmp_path: Path, first: Owner
) -> None:
    url = await holding(tmp_path, [])
    await opened(url, first)
    other = Owner.SUBJECT if first is Owner.CLIENT else Owner.CLIENT
    await opened(url, other)  # there is nothing to lose
    await opened(url, first)
    await holding(tmp_path, [WITH_CLIENT if first is Owner.CLIENT else PERSON])
    with pytest.raises(StoreUnusable, match=f"set owner: {first} under server.auth"):
        await opened(url, other)
    await opened(url, None)  # no caller has a token there, so nobody looks for a task in vain
    await opened(url, first)


@pytest.mark.parametrize(
    ("owners", "refused"),
    [
        ([WITH_CLIENT, *[SERVICE] * 3], True),
        ([WITH_CLIENT, PERSON], False),  # the setting was changed before it was kept
        ([PERSON], False),
        ([SERVICE], False),
        ([LOCAL.id, ANONYMOUS.id, "1000"], False),
        ([], False),
    ],
)
async def test_a_store_from_before_the_setting_was_kept_is_known_by_its_owners(
    tmp_path: Path, owners: Sequence[str], refused: bool
) -> None:
    url = await holding(tmp_path, owners)
    if refused:
        with pytest.raises(StoreUnusable, match="set owner: client"):
            await opened(url, Owner.SUBJECT)
        await opened(url, Owner.CLIENT)
    else:
        await opened(url, Owner.SUBJECT)
