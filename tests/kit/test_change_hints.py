"""Listeners hear of changes by the handles of executions, also where an engine has other names for them."""

from __future__ import annotations

from contextlib import ExitStack

from mcp_workflows.kit.change_hints import ChangeHints


def test_a_listener_hears_of_changes_while_it_listens_and_of_unknown_names_never() -> None:
    hints, heard = ChangeHints(), list[str]()
    hints.register("name", "handle")
    with hints.listen(heard.append):
        hints.notify("another")
        hints.notify_by_name("name")
        hints.notify_by_name("unknown")
    hints.notify("too late")
    assert heard == ["another", "handle"]


def test_a_listener_that_ends_while_a_change_is_told_does_not_hide_it_from_the_next() -> None:
    hints, heard, listening = ChangeHints(), list[str](), ExitStack()
    listening.enter_context(hints.listen(lambda _: listening.close()))
    with hints.listen(heard.append):
        hints.notify("handle")
        hints.notify("handle")
    assert heard == ["handle", "handle"]
