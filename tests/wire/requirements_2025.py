"""The requirements of 2025-11-25 on tasks, each with the test that shows that our server meets it.

Source: basic/utilities/tasks of that revision. The checks of `mcp_tasks_conformance`, which our server passes, show the
behaviour that a client can see; tests of our own show the rest, and behaviour that the suite skips on our server.
"""

from __future__ import annotations

from collections.abc import Mapping

from mcp_tasks_conformance.check import Check
from mcp_tasks_conformance.check import Level as Binding
from mcp_tasks_conformance.runner import CHECKS

from tests.wire.requirements import Level, Requirement

ERA = ("2025-11-25",)
_SUITE = "tests/system/test_conformance_2025.py::test_our_own_server_conforms"
_SERVER = "tests/receiver/v2025_11_25/test_tasks.py"
_OTHER = "tests/receiver/test_receiver.py"
_WIRE = "tests/wire/test_v2025_11_25.py"

LEVELS: Mapping[Binding, Level] = {Binding.MUST: Level.MUST, Binding.SHOULD: Level.SHOULD, Binding.MAY: Level.MAY}
"""INTEROP is none of RFC 2119's: no sentence of the specification asks for it."""

NOT_CLAIMED: Mapping[str, str] = {
    "shape.get-is-no-stream": "The transport of the MCP SDK answers every request by an event stream; and clients that "
    "only poll, and listen nowhere else, are asked there.",
}

UNSEEN: Mapping[str, str] = {
    "creation.ids-cannot-be-guessed": f"{_OTHER}::test_task_ids_are_unguessable_and_fit_headers_and_command_lines",
    "creation.expired-tasks-go": f"{_OTHER}::test_unknown_expired_and_malformed_ids_are_invalid_params",
    "negotiation.list-needs-an-identity": f"{_SERVER}::test_who_is_not_known_has_no_list",
}
"""The suite has nothing to say about them where callers are identified and a ttl has a minimum: shown otherwise."""


def _of_check(check: Check) -> Requirement:
    return Requirement(
        id=f"2025.{check.id}",
        level=LEVELS[check.level],
        section=check.section,
        behaviour=check.text,
        tests=(UNSEEN.get(check.id, _SUITE),),
        eras=ERA,
    )


def _ours(name: str, level: Level, section: str, behaviour: str, *tests: str) -> Requirement:
    return Requirement(id=f"2025.{name}", level=level, section=section, behaviour=behaviour, tests=tests, eras=ERA)


OURS = (
    _ours(
        "this-revision-alone",
        Level.MUST,
        "Capabilities",
        "tasks of the core are for clients that negotiated exactly this revision",
        f"{_WIRE}::test_a_task_is_asked_for_in_this_revision_alone",
        "tests/receiver/test_truth_table.py::test_every_client_gets_what_the_table_says",
    ),
    _ours(
        "own-tools-are-no-tasks",
        Level.SHOULD,
        "Tool-Level Negotiation 2.1",
        "the server's own tools and the task tools refuse to be called as tasks",
        "tests/receiver/test_hand_over.py::test_a_function_that_is_asked_to_be_a_task_of_2025_11_25_says_that_it_is_none",
        "tests/receiver/test_task_tools.py::test_a_task_tool_makes_no_task_itself",
    ),
    _ours(
        "list-of-a-single-user",
        Level.SHOULD,
        "Task Isolation and Access Control",
        "tasks.list is declared for identified callers only; on loopback, a single user is one",
        f"{_SERVER}::test_who_is_not_known_has_no_list",
        f"{_SERVER}::test_a_single_user_on_this_machine_has_a_list",
        f"{_WIRE}::test_tasks_are_declared_and_listed_for_who_is_known",
    ),
    _ours(
        "list-pages",
        Level.SHOULD,
        "Task Listing 1",
        "tasks/list is paged by cursors, which are of use to their owner only",
        f"{_SERVER}::test_tasks_are_listed_page_by_page_newest_first",
        f"{_SERVER}::test_a_cursor_we_did_not_make_is_refused",
    ),
    _ours(
        "ttl-limits",
        Level.MAY,
        "TTL and Resource Management 3",
        "a requested ttl is taken within limits",
        f"{_SERVER}::test_a_ttl_is_honoured_within_limits_and_refused_when_it_is_none",
    ),
    _ours(
        "unlimited-is-null",
        Level.MUST,
        "TTL and Resource Management 4",
        "the ttl of a task without a limit is null, and said",
        f"{_WIRE}::test_an_unlimited_task_says_null_explicitly",
    ),
    _ours(
        "states",
        Level.MUST,
        "Task Status",
        "each status is written as the page says, and isError is failed, with the tool's text in statusMessage",
        f"{_WIRE}::test_each_state_is_written_as_the_spec_says",
    ),
    _ours(
        "cancelled-for-ever",
        Level.MUST,
        "Task Cancellation 3",
        "a cancelled task stays cancelled, whatever its engine says",
        f"{_SERVER}::test_what_was_cancelled_stays_cancelled_in_this_era_whatever_the_engine_says",
    ),
    _ours(
        "related-task",
        Level.MUST,
        "Related Task Metadata",
        "results and questions name their task, tasks/get, tasks/list and tasks/cancel do not",
        f"{_WIRE}::test_only_results_name_the_task_they_belong_to",
        f"{_WIRE}::test_a_created_task_is_nested_and_says_something_for_the_model",
        f"{_SERVER}::test_changes_and_progress_are_told_outside_of_requests",
    ),
    _ours(
        "questions-before-the-task",
        Level.MUST,
        "Task Status Lifecycle 1",
        "what a tool asks before it starts comes before its task, which begins as working",
        f"{_SERVER}::test_questions_of_a_tool_come_before_its_task",
        f"{_SERVER}::test_a_question_that_is_refused_before_the_start_starts_nothing",
    ),
    _ours(
        "owner-in-every-session",
        Level.MUST,
        "Task Isolation and Access Control",
        "a task is its owner's, in every session and era, and nobody else's",
        f"{_SERVER}::test_a_task_of_one_era_is_its_owners_in_the_other",
        f"{_SERVER}::test_somebody_elses_task_looks_like_none",
    ),
)

REQUIREMENTS_2025 = (
    *(_of_check(check) for check in CHECKS if check.level in LEVELS and check.id not in NOT_CLAIMED),
    *OURS,
)
