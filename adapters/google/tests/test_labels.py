"""Labels of executions: whose they are and what the tool says, by Google's rules, and no two people one value."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import pytest
from mcp_workflows_google.start import label_value, labels
from mcp_workflows_google_local.labels import check_labels

from mcp_workflows.adapter import Start


def made(context: Mapping[str, str]) -> Mapping[str, str]:
    order = Start(workflow="w", arguments=[], key="t-1", created=datetime.now(UTC), context=context)
    found = labels(order)
    check_labels(found)
    return found


def test_the_owner_and_what_is_said_of_them_are_labels() -> None:
    told = {"tool": "Fulfil.Order", "owner": "ada", "issuer": "https://login", "client": "web", "desk": "7"}
    assert made({**told, "traceparent": "00-a"}) == {
        "mcp-workflows-key": "t-1",
        "mcp-workflows-tool": "fulfil-order",
        "mcp-workflows-owner": "ada",
        "mcp-workflows-for-desk": "7",
    }


HARD = ["ada@example.com", "Ada", "x" * 64, "\u00e4da", "a b", "ADA@example.com", "ada.example@com", "\ud800", "key"]


@pytest.mark.parametrize("text", HARD)
def test_any_text_can_be_a_label(text: str) -> None:
    made({"owner": text, "email": text, "key": text})


def test_no_two_people_have_one_label() -> None:
    assert len({label_value(text) for text in HARD}) == len(HARD)
    assert label_value("ada@example.com").startswith("ada-example-com-")


def test_the_trace_is_a_label() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert made({"traceparent": trace})["mcp-workflows-traceparent"] == trace
    assert "mcp-workflows-traceparent" not in made({"traceparent": "junk"})
