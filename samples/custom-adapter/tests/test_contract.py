"""AcmeAdapter keeps the laws of the boundary, against Acme's own server: all of them, no gaps."""

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator

import pytest
from mcp_workflows_acme import AcmeAdapter, AcmeSettings

from mcp_workflows.kit.tooling import Checks
from mcp_workflows.testing import AdapterContract, Role, Subject, lossy_proxy


@pytest.fixture(scope="module")
def port(pytestconfig: pytest.Config) -> Iterator[int]:
    command = [sys.executable, str(pytestconfig.rootpath / "server.py"), "--port=0", "--database=:memory:"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        yield int(next(iter(server.stdout or [])).rpartition(":")[2])
        server.terminate()


class TestAcme(AdapterContract):
    capabilities = frozenset({Checks})

    @pytest.fixture
    async def subject(self, port: int) -> AsyncIterator[Subject]:
        async with lossy_proxy(port) as proxy:
            there, nowhere = (f"http://127.0.0.1:{number}" for number in (proxy.port, 1))
            yield Subject(
                new_adapter=lambda: AcmeAdapter(AcmeSettings(address=there, api_key="letmein")),
                finishes=Role(workflow="plate", arguments=[{"text": "hi"}]),
                output={"product": "plate", "letters": 2},
                other_arguments=[{"text": "ho"}],
                fails=Role(workflow="trophy", arguments=[{"text": "much too long " * 9}]),
                failure="room for 40 letters",
                endless=Role(workflow="plate", arguments=[{"text": "hi", "days": 10_000}]),
                asks=Role(workflow="plate", arguments=[{"text": "hi"}], options={"proofs": ["front"]}),
                asks_two=Role(workflow="plate", arguments=[{"text": "hi"}], options={"proofs": ["front", "back"]}),
                content={"approved": True},
                refused=Role(workflow="plate", arguments=[{"text": ""}]),
                unreachable=lambda: AcmeAdapter(AcmeSettings(address=nowhere, api_key="s3cret")),
                secret="s3cret",
                losing_replies=lambda _: proxy.losing(),
            )
