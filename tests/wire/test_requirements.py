"""What the specifications ask of a server, each sentence with the tests that show it; and these tests exist.

Sources: the tasks extension `io.modelcontextprotocol/tasks` for 2026-07-28 (draft of 2026-08-21; SEP-2663), and
basic/utilities/tasks of 2025-11-25; for events the draft in modelcontextprotocol/experimental-ext-triggers-events,
docs/design-sketch-proposal.md. For the second the checks of `mcp_tasks_conformance`, which our server passes, show
the behaviour that a client can see; tests of our own show the rest, and behaviour that the suite skips on our server.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from mcp_tasks_conformance.check import Level
from mcp_tasks_conformance.runner import CHECKS

ROOT: Final = Path(__file__).parents[2]
FILES: Final[Mapping[str, str]] = {
    "wire": "tests/wire/test_v2026_07_28.py",
    "wire25": "tests/wire/test_v2025_11_25.py",
    "server": "tests/receiver/test_receiver.py",
    "server25": "tests/receiver/v2025_11_25/test_tasks.py",
    "executions": "tests/tasks/test_executions.py",
    "task": "tests/test_task.py",
    "webhooks": "tests/events/test_webhooks.py",
    "delivery": "tests/events/test_delivery.py",
    "event-rules": "tests/events/test_rules.py",
}
LEVELS: Final = frozenset({"MUST", "MUST NOT", "SHOULD", "MAY"})  # of RFC 2119

# An id, the level, the section, and the sentence in our words; then the tests, by a name of FILES or their path.
OF_2026: Final = """
neg-1 | MUST | Capability negotiation | advertise the extension under capabilities.extensions in server/discover
    server::test_discover_advertises_the_extension
neg-2 | MUST NOT | Capability negotiation | answer with a task a request that did not declare the extension, whatever
  | was declared before
    server::test_a_request_that_does_not_declare_the_extension_gets_no_task_even_if_an_earlier_one_did
neg-3 | MUST | Capability negotiation | -32021 with requiredCapabilities when a call cannot be served without a task
    server::test_a_required_tool_tells_a_client_without_tasks_what_it_lacks
neg-4 | MUST | Capability negotiation | the same error for tasks/* and for taskIds of a client that did not declare
    server::test_task_requests_of_a_client_that_did_not_declare_are_refused
res-1 | MUST | Result type | resultType "task" on CreateTaskResult and on nothing else
    wire::test_every_outcome_names_its_result_type
res-2 | MUST | Result type | resultType "complete" on the results of get, update and cancel
    wire::test_a_task_is_complete_and_an_acknowledgement_empty
crt-1 | MUST NOT | Task creation | answer with CreateTaskResult before tasks/get would find the task
    server::test_a_created_task_is_found_at_once
crt-2 | SHOULD | Task creation | ask all questions of the call before creating the task, which carries no requestState
    server::test_questions_come_before_the_task
crt-3 | MUST | Task creation | the flat shape, without result, error or inputRequests
    wire::test_a_created_task_is_flat_and_inlines_nothing
get-1 | MUST | tasks/get | working: a task with that status
    wire::test_each_status_is_written_as_the_spec_says
get-2 | MUST | tasks/get | input_required: inputRequests holds all outstanding requests
    wire::test_each_status_is_written_as_the_spec_says
    server::test_questions_are_answered_one_by_one_or_all_at_once
get-3 | MUST | tasks/get | completed: result is what the call would have returned, also when isError
    server::test_the_inlined_result_is_what_the_plain_call_returns
    wire::test_a_failed_workflow_is_completed_with_an_error_result
get-4 | MUST | tasks/get | failed: error is the JSON-RPC error, with a statusMessage
    server::test_a_protocol_error_of_the_workflow_is_failed_with_that_error
get-5 | MUST NOT | tasks/get | failed for anything but a JSON-RPC error
    wire::test_a_failed_workflow_is_completed_with_an_error_result
get-6 | MUST | tasks/get | cancelled: a task with that status
    server::test_cancel_is_acknowledged_and_shows_in_the_status
get-7 | MUST | tasks/get | -32602 with an informative message for an unknown or expired id
    server::test_unknown_expired_and_malformed_ids_are_invalid_params
lif-1 | MUST | Task lifecycle | working and input_required alternate and end; a terminal status never changes
    executions::test_a_terminal_outcome_never_changes_and_is_never_asked_for_again
ttl-1 | MAY | Time to live | usable for ttlMs from createdAt
    server::test_unknown_expired_and_malformed_ids_are_invalid_params
upd-1 | MUST | tasks/update | acknowledge with an empty result; the state may follow
    server::test_questions_are_answered_one_by_one_or_all_at_once
upd-2 | SHOULD | tasks/update | -32602 for an unknown task
    server::test_unknown_expired_and_malformed_ids_are_invalid_params
upd-3 | SHOULD | tasks/update | ignore responses for keys never issued, already answered or superseded
    server::test_unknown_and_answered_keys_are_ignored
upd-4 | MAY | tasks/update | a strict subset may be accepted; input_required until all are in
    server::test_questions_are_answered_one_by_one_or_all_at_once
key-1 | MUST | Input requests | a key is unique over the task's life and never reused
    task::test_an_answered_key_stays_hidden_when_the_engine_shows_it_again
cnl-1 | MUST | tasks/cancel | acknowledge with an empty result, also for an ended task; another terminal status may
  | still come
    server::test_cancel_is_acknowledged_and_shows_in_the_status
    server::test_answers_and_cancellations_of_an_ended_task_are_acknowledged_and_change_nothing
cnl-2 | SHOULD | tasks/cancel | -32602 for an unknown task
    server::test_unknown_expired_and_malformed_ids_are_invalid_params
ntf-1 | MUST | Notifications | notifications/tasks carries what tasks/get would say at that moment
    server::test_a_listener_hears_each_change_as_tasks_get_would_tell_it
ntf-2 | MUST | Notifications | the acknowledgement of subscriptions/listen names the task ids agreed to
    server::test_a_listener_hears_each_change_as_tasks_get_would_tell_it
ntf-3 | MUST NOT | Notifications | notifications/progress or notifications/message on the listen stream
    server::test_a_listener_hears_each_change_as_tasks_get_would_tell_it
hdr-1 | MUST | Headers | an Mcp-Name that is not the task id is refused with -32020 and HTTP 400
    server::test_a_name_header_that_is_not_the_task_id_is_refused
sec-1 | MUST | Security considerations | task ids nobody can guess
    server::test_task_ids_are_unguessable_and_fit_headers_and_command_lines
sec-2 | MUST | Security considerations | every task request is checked against the task's owner
    server::test_another_principal_finds_nothing
old-1 | MUST | Differences from 2025-11-25 | tasks/result and tasks/list are -32601; a legacy task parameter is
  | ignored
    server::test_the_removed_methods_are_not_found
    wire::test_a_call_carries_its_key_and_trace_and_no_legacy_task
"""
OF_2025: Final = """
this-revision-alone | MUST | Capabilities | tasks of the core are for clients that negotiated exactly this revision
    wire25::test_a_task_is_asked_for_in_this_revision_alone
    tests/receiver/test_truth_table.py::test_every_client_gets_what_the_table_says
own-tools-are-no-tasks | SHOULD | Tool-Level Negotiation 2.1 | the server's own tools and the task tools refuse to be
  | called as tasks
    tests/receiver/test_hand_over.py::test_a_function_that_is_asked_to_be_a_task_of_2025_11_25_says_that_it_is_none
    tests/receiver/test_task_tools.py::test_a_task_tool_makes_no_task_itself
list-of-a-single-user | SHOULD | Task Isolation and Access Control | tasks.list is declared for identified callers
  | only; on loopback, a single user is one
    server25::test_who_is_not_known_has_no_list
    server25::test_a_single_user_on_this_machine_has_a_list
    wire25::test_tasks_are_declared_and_listed_for_who_is_known
list-pages | SHOULD | Task Listing 1 | tasks/list is paged by cursors, which are of use to their owner only
    server25::test_tasks_are_listed_page_by_page_newest_first
    server25::test_a_cursor_we_did_not_make_is_refused
ttl-limits | MAY | TTL and Resource Management 3 | a requested ttl is taken within limits
    server25::test_a_ttl_is_honoured_within_limits_and_refused_when_it_is_none
unlimited-is-null | MUST | TTL and Resource Management 4 | the ttl of a task without a limit is null, and said
    wire25::test_an_unlimited_task_says_null_explicitly
states | MUST | Task Status | each status is written as the page says, and isError is failed, with the tool's text in
  | statusMessage
    wire25::test_each_state_is_written_as_the_spec_says
cancelled-for-ever | MUST | Task Cancellation 3 | a cancelled task stays cancelled, whatever its engine says
    server25::test_what_was_cancelled_stays_cancelled_in_this_era_whatever_the_engine_says
related-task | MUST | Related Task Metadata | results and questions name their task, tasks/get, tasks/list and
  | tasks/cancel do not
    wire25::test_only_results_name_the_task_they_belong_to
    wire25::test_a_created_task_is_nested_and_says_something_for_the_model
    server25::test_changes_and_progress_are_told_outside_of_requests
questions-before-the-task | MUST | Task Status Lifecycle 1 | what a tool asks before it starts comes before its task,
  | which begins as working
    server25::test_questions_of_a_tool_come_before_its_task
    server25::test_a_question_that_is_refused_before_the_start_starts_nothing
owner-in-every-session | MUST | Task Isolation and Access Control | a task is its owner's, in every session and era,
  | and nobody else's
    server25::test_a_task_of_one_era_is_its_owners_in_the_other
    server25::test_somebody_elses_task_looks_like_none
"""

OF_EVENTS: Final = """
poll-from-now | MUST | Poll-Based Delivery | a null cursor returns no events and a fresh cursor
    webhooks::test_events_are_listed_polled_and_streamed
stream-frames | MUST | Push-Based Delivery | notifications name their request, and begin with active
    webhooks::test_events_are_listed_polled_and_streamed
same-id | MUST | EventOccurrence | an event has the same eventId on every way and in every attempt
    delivery::test_an_attempt_has_the_same_id_and_a_fresh_time
    webhooks::test_an_ended_task_that_is_subscribed_to_late_is_told_once
principal | MUST | Subscription Identity | a webhook needs an authenticated principal, -32012 otherwise
    event-rules::test_anonymous_callers_hear_of_tasks_whose_id_they_know_alone
isolation | MUST | Subscription Identity | a subscription is its principal's alone
    event-rules::test_no_one_ends_the_subscription_of_another
verification | MUST NOT | Endpoint verification | deliver to an endpoint that has not echoed the challenge
    event-rules::test_an_endpoint_that_does_not_want_events_gets_one_request
verified-once | SHOULD | Endpoint verification | verify once for each principal and URL
    event-rules::test_an_endpoint_is_asked_once_for_all_subscriptions_of_one_caller
https | MUST | TLS requirement | refuse a delivery.url that is not https
    event-rules::test_an_endpoint_that_the_settings_do_not_allow_is_refused
rebinding | MUST | SSRF prevention | check the address at each delivery, and connect to that address
    delivery::test_a_name_that_leads_to_a_private_address_is_never_connected_to
    delivery::test_the_certificate_is_checked_for_the_name_in_the_url
redirects | MUST NOT | SSRF prevention | follow a redirect
    delivery::test_a_redirect_is_not_followed
too-large | MUST | Delivery profile | 413 ends the attempts of that event
    delivery::test_410_ends_the_subscription_and_413_only_the_event
rotation | SHOULD | Secret rotation | sign with the new and the former secret for a while
    delivery::test_a_secret_that_was_replaced_signs_for_a_day_more
independent | MUST | Webhook Event Delivery | each event is tried again by itself
    delivery::test_an_event_that_fails_holds_back_no_other
suspended | MAY | Webhook Delivery Status | suspend after lasting failure, and resume at a refresh
    delivery::test_an_endpoint_that_takes_nothing_is_suspended_and_resumed_by_a_refresh
revoked | MUST | Authorization | the rules are asked for each event, and what they no longer allow is not delivered
    event-rules::test_rules_that_change_count_at_once
    event-rules::test_a_token_that_is_over_ends_the_subscription_after_a_day
cursor-never-fails | MUST NOT | Gaps and truncated | answer an unusable cursor by an error
    event-rules::test_a_cursor_of_another_caller_is_of_no_use
"""

NOT_CLAIMED: Final[Mapping[str, str]] = {
    "shape.get-is-no-stream": "The transport of the MCP SDK answers every request by an event stream; and clients that "
    "only poll, and listen nowhere else, are asked there.",
}
"""Checks of the suite that our server does not pass, and why."""

UNSEEN: Final[Mapping[str, str]] = {
    "creation.ids-cannot-be-guessed": "server::test_task_ids_are_unguessable_and_fit_headers_and_command_lines",
    "creation.expired-tasks-go": "server::test_unknown_expired_and_malformed_ids_are_invalid_params",
    "negotiation.list-needs-an-identity": "server25::test_who_is_not_known_has_no_list",
    "subscribing.anonymous": "tests/system/test_conformance_2025.py::"
    "test_a_caller_who_is_not_known_may_not_subscribe_a_webhook",
}
"""The suite has nothing to say about them where callers are identified and a ttl has a minimum: shown otherwise."""
SUITE: Final = "tests/system/test_conformance_2025.py::test_our_own_server_conforms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One sentence of a specification, and the tests that show it."""

    id: str
    level: str
    behaviour: str
    tests: tuple[str, ...]


def requirements(table: str, prefix: str = "") -> Iterator[Requirement]:
    """Read a table."""
    for block in table.strip().replace("\n  | ", " ").replace("\n    ", "\t").splitlines():
        head, *tests = block.split("\t")
        name, level, _, behaviour = head.split(" | ")
        yield Requirement(id=prefix + name, level=level, behaviour=behaviour, tests=tuple(tests))


ALL: Final = (
    *requirements(OF_2026),
    *requirements(OF_2025, "2025."),
    *requirements(OF_EVENTS, "events."),
    *(
        Requirement(
            id=f"2025.{check.id}", level=check.level.value, behaviour=check.text, tests=(UNSEEN.get(check.id, SUITE),)
        )
        for check in CHECKS
        if check.level is not Level.INTEROP and check.id not in NOT_CLAIMED
    ),
)


@cache
def _tests_in(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / FILES.get(file, file)).read_text())
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(node.name for node in functions if node.name.startswith("test_"))


@pytest.mark.parametrize("requirement", ALL, ids=lambda requirement: requirement.id)
def test_a_requirement_is_shown_by_tests_that_exist(requirement: Requirement) -> None:
    assert requirement.level in LEVELS
    assert requirement.behaviour
    assert requirement.tests
    for test in requirement.tests:
        file, name = test.split("::")
        assert name in _tests_in(file), f"{requirement.id} names {test}, which does not exist"


def test_each_requirement_is_claimed_once() -> None:
    ids = [requirement.id for requirement in ALL]
    assert len(ids) == len(set(ids))


def test_what_is_said_of_single_checks_is_about_checks_that_exist() -> None:
    assert NOT_CLAIMED.keys() | UNSEEN.keys() <= {check.id for check in CHECKS}
