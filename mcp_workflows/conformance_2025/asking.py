"""Tasks that need an answer on their way."""

from __future__ import annotations

import anyio

from mcp_workflows.conformance_2025.answers import accept, answered, decline, hold
from mcp_workflows.conformance_2025.check import BlockedError, Level, Role, Scenario, expect, need
from mcp_workflows.conformance_2025.session import Session
from mcp_workflows.conformance_2025.site import Site, questions, step
from mcp_workflows.conformance_2025.traffic import ENDED, Message, as_object, shown

WAITING = "input_required"
QUIET = 0.5  # seconds in which nothing may happen

asking = Scenario(name="asking", title="Input required")


@asking.check(Level.SHOULD, "Input Required Status 1", Role.ASKS)
async def status(site: Site) -> None:
    """A task that needs an answer is input_required."""
    async with site.session() as session:
        session.answer = hold
        task_id = await site.create(session, Role.ASKS)
        seen = await site.followed(session, task_id, {WAITING})
    expect(seen.get("status") == WAITING, shown(seen))


@asking.check(Level.MUST, "Result Retrieval 3", Role.ASKS)
async def result_blocks(site: Site) -> None:
    """tasks/result of such a task waits, and is answered when the task has ended."""
    async with site.session() as session:
        session.answer = hold
        task_id = await _waiting(site, session)
        result = session.open("tasks/result", {"taskId": task_id})
        await anyio.sleep(QUIET)
        expect(not result.done.is_set(), f"it was answered at once: {result.outcome}")
        await _say(session, (await site.asked(session, task_id))[0])
        reply = await result.reply(site.settings.patience)
        seen = await site.status(session, task_id)
    expect("content" in reply.result and seen in ENDED, f"the task is {seen}: {reply}")


@asking.check(Level.INTEROP, "Task Status", Role.ASKS)
async def asked_on_the_result_stream(site: Site) -> None:
    """A client that calls tasks/result is asked by elicitation/create, though it listens nowhere else."""
    async with site.session() as session:
        session.answer = hold
        task_id = await _waiting(site, session, listening=False)
        session.open("tasks/result", {"taskId": task_id})
        try:
            await site.asked(session, task_id)
        except BlockedError as error:
            expect(False, str(error))


@asking.check(Level.SHOULD, "Input Required Status 4", Role.ASKS)
async def goes_on_when_answered(site: Site) -> None:
    """When all that it asked is answered, the task is no longer input_required."""
    async with site.session() as session:
        task_id = await _waiting(site, session)
        session.open("tasks/result", {"taskId": task_id})
        await site.asked(session, task_id)
        expect(await _left(site, session, task_id), "it still is")


@asking.check(Level.INTEROP, "Input Required Status, note", Role.ASKS)
async def asked_though_it_only_polls(site: Site) -> None:
    """A client that polls tasks/get and listens on the GET stream is asked there, without tasks/result."""
    async with site.session() as session:
        need(await session.listen(), "the server has no stream for it: GET is refused")
        task_id = await site.create(session, Role.ASKS)
        seen = await site.followed(session, task_id)
    expect(seen.get("status") == "completed", shown(seen))


@asking.check(Level.INTEROP, "Elicitation page", Role.ASKS)
async def goes_on_when_declined(site: Site) -> None:
    """A question that is declined is answered: the task ends."""
    async with site.session() as session:
        session.answer = decline
        task_id = await _waiting(site, session)
        session.open("tasks/result", {"taskId": task_id})
        await site.asked(session, task_id)
        expect(await _left(site, session, task_id), "it still is input_required")


@asking.check(Level.INTEROP, "Input Required Status 4", Role.ASKS_TWO)
async def two_questions(site: Site) -> None:
    """A task with two questions asks both, and ends when both are answered."""
    async with site.session() as session:
        task_id = await _waiting(site, session, Role.ASKS_TWO)
        reply = await session.request("tasks/result", {"taskId": task_id})
        asked = len({str(one.body.get("id")) for one in questions(session, task_id)})
    expect("content" in reply.result and asked >= 2, f"{asked} questions came: {reply}")


@asking.check(Level.SHOULD, "Input Required Status 4", Role.ASKS_TWO)
async def one_of_two_answers_is_not_enough(site: Site) -> None:
    """While one of two questions is open, the task does not end."""
    async with site.session() as session:
        session.answer = hold
        task_id = await _waiting(site, session, Role.ASKS_TWO)
        result = session.open("tasks/result", {"taskId": task_id})
        await _say(session, (await site.asked(session, task_id))[0])
        await anyio.sleep(QUIET)
        seen = await site.status(session, task_id)
        expect(seen not in ENDED and not result.done.is_set(), f"it is {seen}: {result.outcome}")


@asking.check(Level.INTEROP, "Retrieving Task Results, note", Role.ASKS)
async def asked_again_after_a_lost_connection(site: Site) -> None:
    """A client that lost tasks/result with the question open is asked again by the next one."""
    async with site.session() as session:
        session.answer = hold
        task_id = await _waiting(site, session)
        lost = session.open("tasks/result", {"taskId": task_id})
        asked = (await site.asked(session, task_id))[0]
        need(asked.channel != "GET", "it asks on the stream of the GET, which is not lost")
        lost.drop()
        session.answer = accept
        reply = await session.request("tasks/result", {"taskId": task_id})
    expect("content" in reply.result, str(reply))


@asking.check(Level.MUST, "Elicitation page", Role.ASKS)
async def only_who_can_be_asked(site: Site) -> None:
    """A client without the elicitation capability is sent no elicitation/create."""
    async with site.session(capabilities={}) as session:
        await session.listen()
        reply = await session.request("tools/call", site.call(Role.ASKS, task={}))
        task_id = str(as_object(reply.result.get("task")).get("taskId"))
        if "result" in reply.body:
            session.open("tasks/result", {"taskId": task_id})
            for _ in range(3):  # some servers ask those who only poll
                await step(session, "tasks/get", {"taskId": task_id})
                await anyio.sleep(QUIET)
        asked = [one for one in session.inbox if one.method == "elicitation/create"]
    expect(not asked, f"{len(asked)} were sent")


async def _waiting(site: Site, session: Session, role: Role = Role.ASKS, *, listening: bool = True) -> str:
    if listening:
        await session.listen()  # a server may ask on any stream
    task_id = await site.create(session, role)
    await site.until(session, task_id, {WAITING})
    return task_id


async def _left(site: Site, session: Session, task_id: str) -> bool:
    """Whether the task leaves input_required in time."""
    seen = await site.followed(session, task_id, {"working"})
    return seen.get("status") in {"working", *ENDED}


async def _say(session: Session, asked: Message) -> None:
    """Accept one question."""
    response = answered(asked, accept)
    if response is not None:
        await session.respond(asked, response)
