from __future__ import annotations
from pathlib import Path
import pytest
from tests.support.approval_pages import *

pytestmark = pytest.mark.anyio


async def test_x(tmp_path: Path) -> None:
    async with told_provider() as provider, office(tmp_path, provider) as found:
        task = await found.requested(version="1.4", note="<b>")
        bob = found.browser()
        shown = await bob.log_in("bob", found.link(task), groups=[MANAGERS])
        print(shown.status, shown.text, shown.fields, shown.buttons, shown.html.forms)
        shown = await bob.press(shown, "accept", reason="ok")
        print(shown.status, shown.text)
        print(await found.peer().until(task))
        print(found.audit)
        for x in ("//[", "/approvals/../x", "/approvals/%2e%2e/x"):
            r = await found.browser().send("GET", found.home + "/login?" + urlencode({"to": x}))
            print(x, r.status)
