"""The command line of the suite, and the document that describes it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from anyio import to_thread
from mcp_tasks_conformance.__main__ import main
from mcp_tasks_conformance.fixtures import official_fixtures

from conformance.tests.receiver import Receiver, serve

pytestmark = pytest.mark.anyio

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "reference" / "conformance-2025.md"


async def test_the_command_reports_violations_and_exits_with_1_only_for_a_must(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with serve(Receiver("cancels-cancelled", "forbidden-anyway")) as (url,):
        quick = [url, "--poll", "0.03", "--seconds", "0.3", "--timeout", "5", "--only"]
        must = await to_thread.run_sync(main, [*quick, "cancelling.not-twice,creation.id-is-a-string", "-o", "-"])
        out, err = capsys.readouterr()
        should = await to_thread.run_sync(main, [*quick, "negotiation.forbidden-with-task,creation.id-is-a-string"])
    assert (must, should) == (1, 0)
    found = {one["id"]: one for one in json.loads(out)["checks"]}
    assert found["creation.id-is-a-string"]["state"] == "passed"
    assert found["cancelling.not-twice"]["state"] == "failed"
    assert found["cancelling.not-twice"]["section"] == "Task Cancellation 1"
    assert '"status": "cancelled"' in found["cancelling.not-twice"]["detail"]
    assert "A cancelled task cannot be cancelled again: -32602." in err
    printed = capsys.readouterr().out
    assert "warning" in printed
    assert "[Tool-Level Negotiation 2.1]" in printed


def test_a_server_that_is_not_there_is_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["http://127.0.0.1:1/mcp"]) == 2
    assert "initialize: the connection broke" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "give the URL"),
        (["localhost:1/mcp"], "is no http:// or https:// URL"),
        (["http://h/mcp", "--only", "nonsense"], "no such check"),
        (["http://h/mcp", "--tool", "slowly=x"], "roles are plain, quick, slow"),
        (["http://h/mcp", "--tool", "slow=x {"], "no JSON"),
        (["http://h/mcp", "--tool", "slow=x 7"], "must be a JSON object"),
        (["http://h/mcp", "--event", "task.ended {"], "--event 'task.ended {': the arguments are no JSON"),
        (["http://h/mcp", "--callback", "127.0.0.1:0"], "is no http:// or https:// URL"),
        (["http://h/mcp", "--timeout", "0"], "greater than 0"),
        (["http://h/mcp", "--header", "s3cret"], "take 'Name: value'"),
    ],
)
def test_wrong_usage_is_a_message(argv: Sequence[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert "s3cret" not in printed


def test_the_list_in_the_document_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "markdown"]) == 0
    document = DOCUMENT.read_text()
    assert (
        capsys.readouterr().out.strip()
        == document.split("<!-- begin checks -->")[1].split("<!-- end checks -->")[0].strip()
    )


def test_the_document_names_every_role_and_its_fixture() -> None:
    document = DOCUMENT.read_text()
    missing = [role for role, fixture in official_fixtures(2).items() if f"| `{role}` | `{fixture}` |" not in document]
    assert missing == []


def test_every_option_is_in_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help"}
    assert {option for option in options if option not in DOCUMENT.read_text()} == set()
