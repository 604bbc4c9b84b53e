"""Every requirement we claim names tests, and they exist."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.requirements import REQUIREMENTS, Requirement

ROOT = Path(__file__).parent.parent


def _tests_in(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text())
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(node.name for node in functions if node.name.startswith("test_"))


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=lambda requirement: requirement.id)
def test_a_requirement_is_shown_by_tests_that_exist(requirement: Requirement) -> None:
    assert requirement.tests
    for test in requirement.tests:
        file, name = test.split("::")
        assert name in _tests_in(file), f"{requirement.id} names {test}, which does not exist"


def test_each_requirement_is_claimed_once() -> None:
    ids = [requirement.id for requirement in REQUIREMENTS]
    assert len(ids) == len(set(ids))
