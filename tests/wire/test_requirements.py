"""Every requirement we claim names tests, and they exist."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest
from mcp_tasks_conformance.runner import CHECKS

from tests.wire.requirements import REQUIREMENTS, Requirement
from tests.wire.requirements_2025 import NOT_CLAIMED, REQUIREMENTS_2025, UNSEEN

ROOT = Path(__file__).parents[2]
ALL = (*REQUIREMENTS, *REQUIREMENTS_2025)


@cache
def _tests_in(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text())
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(node.name for node in functions if node.name.startswith("test_"))


@pytest.mark.parametrize("requirement", ALL, ids=lambda requirement: requirement.id)
def test_a_requirement_is_shown_by_tests_that_exist(requirement: Requirement) -> None:
    assert requirement.tests
    for test in requirement.tests:
        file, name = test.split("::")
        assert name in _tests_in(file), f"{requirement.id} names {test}, which does not exist"


def test_each_requirement_is_claimed_once() -> None:
    ids = [requirement.id for requirement in ALL]
    assert len(ids) == len(set(ids))


def test_what_is_said_of_single_checks_is_about_checks_that_exist() -> None:
    assert NOT_CLAIMED.keys() | UNSEEN.keys() <= {check.id for check in CHECKS}
