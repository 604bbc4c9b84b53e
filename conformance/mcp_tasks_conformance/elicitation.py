"""Checks of tasks that ask the user by elicitation."""

from __future__ import annotations

import anyio

from mcp_tasks_conformance.answers import accept, build_response, decline, hold
from mcp_tasks_conformance.check import BlockedError, Level, Scenario, ToolRole, expect, skip_unless
from mcp_tasks_conformance.server_under_test import ServerUnderTest, find_questions, require_reply
from mcp_tasks_conformance.session import ClientSession
from mcp_tasks_conformance.traffic import TERMINAL, Message, as_object, format_json

INPUT_REQUIRED = "input_required"
QUIET = 0.5  # seconds to wait for what must not happen

elicitation = Scenario(name="asking", title="Input required")


@elicitation.check(Level.SHOULD, "Input Required Status 1", ToolRole.ASKS)
async def status(server: ServerUnderTest) -> None:
    """A task that needs an answer is input_required."""
    async with server.session() as session:
        session.answer = hold
        task_id = await server.create_task(session, ToolRole.ASKS)
        seen = await server.poll_until(session, task_id, {INPUT_REQUIRED})
    expect(seen.get("status") == INPUT_REQUIRED, format_json(seen))


@elicitation.check(Level.MUST, "Result Retrieval 3", ToolRole.ASKS)
async def result_blocks(server: ServerUnderTest) -> None:
    """tasks/result of an input_required task waits, and returns when the task has ended."""
    async with server.session() as session:
        session.answer = hold
        task_id = await _create_waiting_task(server, session)
        result = session.start_request("tasks/result", {"taskId": task_id})
        await anyio.sleep(QUIET)
        expect(not result.done.is_set(), f"it was answered at once: {result.outcome}")
        await _accept_question(session, await server.wait_for_question(session, task_id))
        reply = await result.wait_for_reply(server.settings.timeout)
        seen = await server.get_status(session, task_id)
    expect("content" in reply.result and seen in TERMINAL, f"the task is {seen}: {reply}")


@elicitation.check(Level.INTEROP, "Task Status", ToolRole.ASKS)
async def asked_on_the_result_stream(server: ServerUnderTest) -> None:
    """A client that calls tasks/result and has no other stream open receives elicitation/create there."""
    async with server.session() as session:
        session.answer = hold
        task_id = await _create_waiting_task(server, session, listen=False)
        session.start_request("tasks/result", {"taskId": task_id})
        try:
            await server.wait_for_question(session, task_id)
        except BlockedError as error:
            expect(False, str(error))


@elicitation.check(Level.SHOULD, "Input Required Status 4", ToolRole.ASKS)
async def goes_on_when_answered(server: ServerUnderTest) -> None:
    """Once all its questions are answered, the task is no longer input_required."""
    async with server.session() as session:
        task_id = await _create_waiting_task(server, session)
        session.start_request("tasks/result", {"taskId": task_id})
        await server.wait_for_question(session, task_id)
        expect(await _leaves_input_required(server, session, task_id), "it still is")


@elicitation.check(Level.INTEROP, "Input Required Status, note", ToolRole.ASKS)
async def asked_though_it_only_polls(server: ServerUnderTest) -> None:
    """A client that only polls tasks/get receives elicitation/create on its GET stream, without tasks/result."""
    async with server.session() as session:
        skip_unless(await session.listen(), "the server has no stream for it: GET is refused")
        task_id = await server.create_task(session, ToolRole.ASKS)
        seen = await server.poll_until(session, task_id)
    expect(seen.get("status") == "completed", format_json(seen))


@elicitation.check(Level.INTEROP, "Elicitation page", ToolRole.ASKS)
async def goes_on_when_declined(server: ServerUnderTest) -> None:
    """Declining a question answers it: the task leaves input_required."""
    async with server.session() as session:
        session.answer = decline
        task_id = await _create_waiting_task(server, session)
        session.start_request("tasks/result", {"taskId": task_id})
        await server.wait_for_question(session, task_id)
        expect(await _leaves_input_required(server, session, task_id), "it still is input_required")


@elicitation.check(Level.INTEROP, "Input Required Status 4", ToolRole.ASKS_TWO)
async def two_questions(server: ServerUnderTest) -> None:
    """A task with two questions asks both, and ends when both are answered."""
    async with server.session() as session:
        task_id = await _create_waiting_task(server, session, ToolRole.ASKS_TWO)
        reply = await session.request("tasks/result", {"taskId": task_id})
        asked = len({str(one.body.get("id")) for one in find_questions(session, task_id)})
    expect("content" in reply.result and asked >= 2, f"{asked} questions came: {reply}")


@elicitation.check(Level.SHOULD, "Input Required Status 4", ToolRole.ASKS_TWO)
async def one_of_two_answers_is_not_enough(server: ServerUnderTest) -> None:
    """While one of two questions is open, the task does not end."""
    async with server.session() as session:
        session.answer = hold
        task_id = await _create_waiting_task(server, session, ToolRole.ASKS_TWO)
        result = session.start_request("tasks/result", {"taskId": task_id})
        await _accept_question(session, await server.wait_for_question(session, task_id))
        await anyio.sleep(QUIET)
        seen = await server.get_status(session, task_id)
        expect(seen not in TERMINAL and not result.done.is_set(), f"it is {seen}: {result.outcome}")


@elicitation.check(Level.INTEROP, "Retrieving Task Results, note", ToolRole.ASKS)
async def asked_again_after_a_lost_connection(server: ServerUnderTest) -> None:
    """If tasks/result loses its connection while a question is open, the next tasks/result asks it again."""
    async with server.session() as session:
        session.answer = hold
        task_id = await _create_waiting_task(server, session)
        lost = session.start_request("tasks/result", {"taskId": task_id})
        question = await server.wait_for_question(session, task_id)
        skip_unless(question.channel != "GET", "it asks on the stream of the GET, which is not lost")
        lost.disconnect()
        session.answer = accept
        reply = await session.request("tasks/result", {"taskId": task_id})
    expect("content" in reply.result, str(reply))


@elicitation.check(Level.MUST, "Elicitation page", ToolRole.ASKS)
async def only_who_can_be_asked(server: ServerUnderTest) -> None:
    """The server sends no elicitation/create to a client without the elicitation capability."""
    async with server.session(capabilities={}) as session:
        await session.listen()
        reply = await session.request("tools/call", server.call_params(ToolRole.ASKS, task={}))
        task_id = str(as_object(reply.result.get("task")).get("taskId"))
        if "result" in reply.body:
            session.start_request("tasks/result", {"taskId": task_id})
            for _ in range(3):  # some servers ask a client that only polls
                await require_reply(session, "tasks/get", {"taskId": task_id})
                await anyio.sleep(QUIET)
        asked = [one for one in session.inbox if one.method == "elicitation/create"]
    expect(not asked, f"{len(asked)} were sent")


async def _create_waiting_task(
    server: ServerUnderTest, session: ClientSession, role: ToolRole = ToolRole.ASKS, *, listen: bool = True
) -> str:
    """Create a task, and return its id once it is input_required."""
    if listen:
        await session.listen()  # a server may send its question on any stream
    task_id = await server.create_task(session, role)
    await server.wait_for_status(session, task_id, {INPUT_REQUIRED})
    return task_id


async def _leaves_input_required(server: ServerUnderTest, session: ClientSession, task_id: str) -> bool:
    """Return True if the task leaves input_required in time."""
    task = await server.poll_until(session, task_id, {"working"})
    return task.get("status") in {"working", *TERMINAL}


async def _accept_question(session: ClientSession, question: Message) -> None:
    """Accept one elicitation."""
    response = build_response(question, accept)
    if response is not None:
        await session.respond(question, response)
