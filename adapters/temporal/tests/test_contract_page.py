"""docs/temporal-contract.md says what the code says."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from mcp_workflows_temporal import TemporalAdapter
from mcp_workflows_temporal_worker import contract
from mcp_workflows_temporal_worker.forms import LIMITS, TYPES, form

from adapters.temporal.tests.contract_page import PAGE, page_block

WRITTEN_BY_WORKFLOWS = {
    contract.MEMO_INPUT,
    contract.MEMO_STATUS,
    contract.ANSWER_UPDATE,
    contract.ANSWER_SIGNAL,
    contract.UNKNOWN_QUESTION,
    contract.BAD_ANSWER,
    contract.BAD_QUESTION,
}
NAME = re.compile(r"(?<![\w.])(?:mcp\.[a-z]+|mcp_answer\w*|Mcp[A-Z]\w+)(?![\w.])")


def agreed() -> set[str]:
    return {value for name, value in vars(contract).items() if name.isupper() and isinstance(value, str)}


def code_names(page: str) -> set[str]:
    """The names of the contract in what is written as code."""
    return set(NAME.findall(" ".join(re.findall(r"`([^`\n]+)`", page))))


def test_the_page_has_every_name_of_the_contract_and_no_other() -> None:
    assert code_names(PAGE.read_text()) == agreed()


def test_the_page_and_the_files_are_of_this_version() -> None:
    for text in (PAGE.read_text(), *TemporalAdapter.embeds().values()):
        assert set(re.findall(r"Contract (\d+)", text)) == {str(contract.CONTRACT)}


@pytest.mark.parametrize("language", ["go", "typescript"])
def test_the_files_use_the_names_that_workflows_write(language: str) -> None:
    file = TemporalAdapter.embeds()[language]
    assert set(re.findall(r"[\"'](mcp[._][\w.]+|Mcp\w+)[\"']", file)) == WRITTEN_BY_WORKFLOWS


def test_the_page_names_every_word_of_the_check() -> None:
    page = PAGE.read_text()
    assert all(f"`{word}`" in page for word in (*TYPES, *LIMITS, "required", "enum", "type"))


def test_the_question_on_the_page_can_be_shown() -> None:
    asked: Any = json.loads(page_block("json"))
    [request] = asked["requests"].values()
    assert form(request["params"]["requestedSchema"])["required"] == ["ok"]
