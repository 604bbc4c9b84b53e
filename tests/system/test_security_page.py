"""The threat model is true where that can be checked: each test it names is there, its table is the tested one."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.system.test_ownership import PAGE_TABLE, TABLE

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "secure" / "security.md"
NAMED = sorted(set(re.findall(r"`(test_\w+\.py)::(test_\w+)`", PAGE.read_text())))


@cache
def functions_of(file: str) -> frozenset[str]:
    """Return the names of the functions in the files of tests with a name, whatever folder they are in."""
    found = [*(ROOT / "tests").rglob(file), *(ROOT / "adapters").glob(f"*/tests/{file}")]
    nodes = [node for each in found for node in ast.walk(ast.parse(each.read_text()))]
    return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize(("file", "name"), NAMED, ids=[name for _, name in NAMED])
def test_a_test_that_the_page_names_is_there(file: str, name: str) -> None:
    assert name in functions_of(file)


def test_each_threat_names_a_test() -> None:
    threats = PAGE.read_text().split("## Threats")[1].split("## Residual risks")[0]
    found = [line for line in threats.splitlines() if line.startswith("- ")]
    assert len(found) > 50
    assert [line for line in found if "::test_" not in line] == []


def test_the_page_shows_the_table_of_owners_and_callers() -> None:
    assert TABLE.strip() in PAGE.read_text()
    assert PAGE_TABLE.strip() in PAGE.read_text()
