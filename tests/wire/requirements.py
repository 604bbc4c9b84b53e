"""What the specification asks of a server, each with the test that shows it.

Source: the tasks extension `io.modelcontextprotocol/tasks` for 2026-07-28 (draft of 2026-08-21; SEP-2663). `section` is
the section of that specification; levels are RFC 2119's. For the tasks of 2025-11-25 see `requirements_2025.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """RFC 2119."""

    MUST = "MUST"
    MUST_NOT = "MUST NOT"
    SHOULD = "SHOULD"
    MAY = "MAY"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One sentence of the specification in our words, and the tests (file::name) that show it."""

    id: str
    level: Level
    section: str
    behaviour: str
    tests: tuple[str, ...]
    eras: tuple[str, ...] = ("2026-07-28",)


_WIRE = "tests/wire/test_v2026_07_28.py"
_SERVER = "tests/receiver/test_receiver.py"
_LEDGER = "tests/tasks/test_executions.py"
_TASK = "tests/test_task.py"

REQUIREMENTS = (
    Requirement(
        id="neg-1",
        level=Level.MUST,
        section="Capability negotiation",
        behaviour="advertise the extension under capabilities.extensions in server/discover",
        tests=(f"{_SERVER}::test_discover_advertises_the_extension",),
    ),
    Requirement(
        id="neg-2",
        level=Level.MUST_NOT,
        section="Capability negotiation",
        behaviour="answer with a task a request that did not declare the extension, whatever was declared before",
        tests=(
            f"{_SERVER}::test_a_request_that_does_not_declare_the_extension_gets_no_task_even_if_an_earlier_one_did",
        ),
    ),
    Requirement(
        id="neg-3",
        level=Level.MUST,
        section="Capability negotiation",
        behaviour="-32021 with requiredCapabilities when a call cannot be served without a task",
        tests=(f"{_SERVER}::test_a_required_tool_tells_a_client_without_tasks_what_it_lacks",),
    ),
    Requirement(
        id="neg-4",
        level=Level.MUST,
        section="Capability negotiation",
        behaviour="the same error for tasks/* and for taskIds of a client that did not declare",
        tests=(f"{_SERVER}::test_task_requests_of_a_client_that_did_not_declare_are_refused",),
    ),
    Requirement(
        id="res-1",
        level=Level.MUST,
        section="Result type",
        behaviour='resultType "task" on CreateTaskResult and on nothing else',
        tests=(f"{_WIRE}::test_every_outcome_names_its_result_type",),
    ),
    Requirement(
        id="res-2",
        level=Level.MUST,
        section="Result type",
        behaviour='resultType "complete" on the results of get, update and cancel',
        tests=(f"{_WIRE}::test_every_outcome_names_its_result_type",),
    ),
    Requirement(
        id="crt-1",
        level=Level.MUST_NOT,
        section="Task creation",
        behaviour="answer with CreateTaskResult before tasks/get would find the task",
        tests=(f"{_SERVER}::test_a_created_task_is_found_at_once",),
    ),
    Requirement(
        id="crt-2",
        level=Level.SHOULD,
        section="Task creation",
        behaviour="ask all questions of the call before creating the task, which carries no requestState",
        tests=(f"{_SERVER}::test_questions_come_before_the_task",),
    ),
    Requirement(
        id="crt-3",
        level=Level.MUST,
        section="Task creation",
        behaviour="the flat shape, without result, error or inputRequests",
        tests=(f"{_WIRE}::test_a_created_task_is_flat_and_inlines_nothing",),
    ),
    Requirement(
        id="get-1",
        level=Level.MUST,
        section="tasks/get",
        behaviour="working: a task with that status",
        tests=(f"{_WIRE}::test_each_status_is_written_as_the_spec_says",),
    ),
    Requirement(
        id="get-2",
        level=Level.MUST,
        section="tasks/get",
        behaviour="input_required: inputRequests holds all outstanding requests",
        tests=(
            f"{_WIRE}::test_each_status_is_written_as_the_spec_says",
            f"{_SERVER}::test_questions_are_answered_one_by_one_or_all_at_once",
        ),
    ),
    Requirement(
        id="get-3",
        level=Level.MUST,
        section="tasks/get",
        behaviour="completed: result is what the call would have returned, also when isError",
        tests=(
            f"{_SERVER}::test_the_inlined_result_is_what_the_plain_call_returns",
            f"{_WIRE}::test_a_failed_workflow_is_completed_with_an_error_result",
        ),
    ),
    Requirement(
        id="get-4",
        level=Level.MUST,
        section="tasks/get",
        behaviour="failed: error is the JSON-RPC error, with a statusMessage",
        tests=(f"{_SERVER}::test_a_protocol_error_of_the_workflow_is_failed_with_that_error",),
    ),
    Requirement(
        id="get-5",
        level=Level.MUST_NOT,
        section="tasks/get",
        behaviour="failed for anything but a JSON-RPC error",
        tests=(f"{_WIRE}::test_a_failed_workflow_is_completed_with_an_error_result",),
    ),
    Requirement(
        id="get-6",
        level=Level.MUST,
        section="tasks/get",
        behaviour="cancelled: a task with that status",
        tests=(f"{_SERVER}::test_cancel_is_acknowledged_and_shows_in_the_status",),
    ),
    Requirement(
        id="get-7",
        level=Level.MUST,
        section="tasks/get",
        behaviour="-32602 with an informative message for an unknown or expired id",
        tests=(f"{_SERVER}::test_unknown_expired_and_malformed_ids_are_invalid_params",),
    ),
    Requirement(
        id="lif-1",
        level=Level.MUST,
        section="Task lifecycle",
        behaviour="working and input_required alternate and end; a terminal status never changes",
        tests=(f"{_LEDGER}::test_a_terminal_outcome_never_changes_and_is_never_asked_for_again",),
    ),
    Requirement(
        id="ttl-1",
        level=Level.MAY,
        section="Time to live",
        behaviour="usable for ttlMs from createdAt",
        tests=(f"{_SERVER}::test_unknown_expired_and_malformed_ids_are_invalid_params",),
    ),
    Requirement(
        id="upd-1",
        level=Level.MUST,
        section="tasks/update",
        behaviour="acknowledge with an empty result; the state may follow",
        tests=(f"{_SERVER}::test_questions_are_answered_one_by_one_or_all_at_once",),
    ),
    Requirement(
        id="upd-2",
        level=Level.SHOULD,
        section="tasks/update",
        behaviour="-32602 for an unknown task",
        tests=(f"{_SERVER}::test_unknown_expired_and_malformed_ids_are_invalid_params",),
    ),
    Requirement(
        id="upd-3",
        level=Level.SHOULD,
        section="tasks/update",
        behaviour="ignore responses for keys never issued, already answered or superseded",
        tests=(f"{_SERVER}::test_unknown_and_answered_keys_are_ignored",),
    ),
    Requirement(
        id="upd-4",
        level=Level.MAY,
        section="tasks/update",
        behaviour="a strict subset may be accepted; input_required until all are in",
        tests=(f"{_SERVER}::test_questions_are_answered_one_by_one_or_all_at_once",),
    ),
    Requirement(
        id="key-1",
        level=Level.MUST,
        section="Input requests",
        behaviour="a key is unique over the task's life and never reused",
        tests=(f"{_TASK}::test_an_answered_key_stays_hidden_when_the_engine_shows_it_again",),
    ),
    Requirement(
        id="cnl-1",
        level=Level.MUST,
        section="tasks/cancel",
        behaviour="acknowledge with an empty result, also for an ended task; another terminal status may still come",
        tests=(
            f"{_SERVER}::test_cancel_is_acknowledged_and_shows_in_the_status",
            f"{_SERVER}::test_answers_and_cancellations_of_an_ended_task_are_acknowledged_and_change_nothing",
        ),
    ),
    Requirement(
        id="cnl-2",
        level=Level.SHOULD,
        section="tasks/cancel",
        behaviour="-32602 for an unknown task",
        tests=(f"{_SERVER}::test_unknown_expired_and_malformed_ids_are_invalid_params",),
    ),
    Requirement(
        id="ntf-1",
        level=Level.MUST,
        section="Notifications",
        behaviour="notifications/tasks carries what tasks/get would say at that moment",
        tests=(f"{_SERVER}::test_a_listener_hears_each_change_as_tasks_get_would_tell_it",),
    ),
    Requirement(
        id="ntf-2",
        level=Level.MUST,
        section="Notifications",
        behaviour="the acknowledgement of subscriptions/listen names the task ids agreed to",
        tests=(f"{_SERVER}::test_a_listener_hears_each_change_as_tasks_get_would_tell_it",),
    ),
    Requirement(
        id="ntf-3",
        level=Level.MUST_NOT,
        section="Notifications",
        behaviour="notifications/progress or notifications/message on the listen stream",
        tests=(f"{_SERVER}::test_a_listener_hears_each_change_as_tasks_get_would_tell_it",),
    ),
    Requirement(
        id="hdr-1",
        level=Level.MUST,
        section="Headers",
        behaviour="an Mcp-Name that is not the task id is refused with -32020 and HTTP 400",
        tests=(f"{_SERVER}::test_a_name_header_that_is_not_the_task_id_is_refused",),
    ),
    Requirement(
        id="sec-1",
        level=Level.MUST,
        section="Security considerations",
        behaviour="task ids nobody can guess",
        tests=(f"{_SERVER}::test_task_ids_are_unguessable_and_fit_headers_and_command_lines",),
    ),
    Requirement(
        id="sec-2",
        level=Level.MUST,
        section="Security considerations",
        behaviour="every task request is checked against the task's owner",
        tests=(f"{_SERVER}::test_another_principal_finds_nothing",),
    ),
    Requirement(
        id="old-1",
        level=Level.MUST,
        section="Differences from 2025-11-25",
        behaviour="tasks/result and tasks/list are -32601; a legacy task parameter is ignored",
        tests=(
            f"{_SERVER}::test_the_removed_methods_are_not_found",
            f"{_WIRE}::test_a_call_carries_its_key_and_trace_and_no_legacy_task",
        ),
    ),
)
