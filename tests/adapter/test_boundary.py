"""What is said of an adapter that is not here: how to get it, and nothing that a slip could install."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import EntryPoint

import pytest

from mcp_workflows.adapter import EXTRA_OF_ADAPTER, load_adapter
from mcp_workflows.adapter import boundary as adapter
from mcp_workflows.errors import ConfigError


def said(monkeypatch: pytest.MonkeyPatch, name: str, *installed: str) -> str:
    """Where these adapters are installed, and no others."""
    points = [EntryPoint(name=each, value="nowhere:Nothing", group=adapter.ENTRY_POINT_GROUP) for each in installed]

    def entry_points(*, group: str, name: str | None = None) -> Sequence[EntryPoint]:
        return [point for point in points if point.group == group and name in {None, point.name}]

    monkeypatch.setattr(adapter, "entry_points", entry_points)
    with pytest.raises(ConfigError) as refused:
        load_adapter(name)
    return str(refused.value)


@pytest.mark.parametrize("name", EXTRA_OF_ADAPTER)
def test_an_adapter_of_ours_comes_with_its_extra(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert said(monkeypatch, name).endswith(
        f"(installed: none); try: pip install 'mcp-workflows[{EXTRA_OF_ADAPTER[name]}]'"
    )


@pytest.mark.parametrize(
    ("name", "meant", "extra"),
    [
        ("google", "google-workflows", "google"),
        ("googel", "google-workflows", "google"),
        ("google-workflow", "google-workflows", "google"),
        ("stepfunction", "stepfunctions", "stepfunctions"),
        ("temporale", "temporal", "temporal"),
    ],
)
def test_a_slip_or_an_extra_is_told_with_what_was_meant(
    monkeypatch: pytest.MonkeyPatch, name: str, meant: str, extra: str
) -> None:
    assert said(monkeypatch, name, "memory").endswith(
        f"did you mean {meant!r}? try: pip install 'mcp-workflows[{extra}]'"
    )
    assert said(monkeypatch, name, "memory", meant).endswith(f"did you mean {meant!r}?")


def test_what_nobody_knows_is_never_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    text = said(monkeypatch, "airflow")
    assert "pip install" not in text
    known = "dbos, google-workflows, http, mcp, stepfunctions, temporal"
    assert text.endswith(f"this project has: {known}; others come in separate packages")


def test_an_entry_point_that_names_no_class_says_what_makes_one(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint(name="acme", value="math:pi", group=adapter.ENTRY_POINT_GROUP)

    def entry_points(**_: str) -> Sequence[EntryPoint]:
        return [point]

    monkeypatch.setattr(adapter, "entry_points", entry_points)
    with pytest.raises(ConfigError, match="'acme' is no class: give `settings` to from_functions"):
        load_adapter("acme")
