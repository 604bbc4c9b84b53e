"""Workflows whose tasks the run card is tested with; a module of an engine with `adapter: dbos`."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from dbos import DBOS
from mcp_workflows_dbos import ask, progress
from mcp_workflows_dbos.workflow import ANSWER, QUESTION

PAUSE = float(os.environ.get("CARD_FLOWS_PAUSE", "0"))  # seconds that a step takes, so that pictures can show it
ORDER = {
    "type": "object",
    "properties": {
        "ship": {"type": "boolean", "title": "Ship it?"},
        "carrier": {
            "type": "string",
            "title": "Carrier",
            "oneOf": [{"const": "post", "title": "Post"}, {"const": "van", "title": "Our van"}],
        },
        "email": {
            "type": "string",
            "format": "email",
            "title": "Tell whom",
            "description": "Gets the tracking number.",
        },
        "boxes": {"type": "integer", "minimum": 1, "maximum": 9, "default": 1, "title": "Boxes"},
    },
    "required": ["ship", "carrier"],
}
EVERY_WIDGET = {
    "type": "object",
    "properties": {
        "plain": {"type": "string", "minLength": 2, "maxLength": 5},
        "note": {"type": "string", "title": "Note", "maxLength": 500},
        "site": {"type": "string", "format": "uri", "title": "Site"},
        "day": {"type": "string", "format": "date", "title": "Day"},
        "at": {"type": "string", "format": "date-time", "title": "At"},
        "size": {"type": "string", "title": "Size", "enum": ["s", "m"], "enumNames": ["Small", "Medium"]},
        "city": {"type": "string", "title": "City", "enum": [f"city {at}" for at in range(12)]},
        "gifts": {
            "type": "array",
            "title": "Gifts",
            "minItems": 1,
            "maxItems": 2,
            "items": {"anyOf": [{"const": each, "title": each.upper()} for each in ("tea", "cup", "hat")]},
        },
        "price": {"type": "number", "title": "Price", "minimum": 0.5, "maximum": 9.5},
        "sure": {"type": "boolean", "title": "Sure?", "default": False},
        "rest": {"type": "array", "title": "Rest", "items": {"type": "object"}},
        "code": {"type": "string", "title": "Code", "pattern": "^[A-Z]{3}$"},
    },
    "required": ["plain", "gifts", "price", "code"],
}
HOSTILE = (
    '<img src=x onerror="parent.postMessage(1,\'*\')"><script>document.title="owned"</script>'
    "</textarea></option>\u202egnp.exe {{7*7}} javascript:alert(1)"
)


@DBOS.step()
async def reserve_stock(order_id: str) -> str:
    """Reserve what is ordered."""
    await asyncio.sleep(PAUSE)
    return order_id


@DBOS.step()
async def charge_card(order_id: str) -> str:
    """Charge the card."""
    await asyncio.sleep(PAUSE)
    return f"receipt for {order_id}"


@DBOS.workflow()
async def fulfil_order(order_id: str) -> dict[str, Any]:
    """Reserve stock, charge the card and ship."""
    await progress("reserving stock", 1, 4)
    await reserve_stock(order_id)
    await progress("charging the card", 2, 4)
    await charge_card(order_id)
    await progress("waiting for a person", 3, 4)
    answer = await ask(f"Ship order {order_id}?", ORDER)
    return {"order_id": order_id, "action": answer.action, **answer.content}


@DBOS.workflow()
async def ask_everything() -> dict[str, Any]:
    """Ask with each widget there is; `ask` would refuse the list of objects."""
    question = {"mode": "form", "message": "Everything", "requestedSchema": EVERY_WIDGET}
    await DBOS.set_event_async(f"{QUESTION}everything", question)
    return {"answer": (await DBOS.recv_async(f"{ANSWER}everything", 3600))["content"]}


@DBOS.workflow()
async def ask_two() -> dict[str, Any]:
    """Ask two questions at once."""
    form = {"type": "object", "properties": {"why": {"type": "string", "title": "Why"}}}
    answers = await asyncio.gather(ask("First?", form), ask("Second?", form))
    return {"first": answers[0].content, "second": answers[1].content}


@DBOS.workflow()
async def ask_yes_or_no() -> dict[str, Any]:
    """Ask without a form."""
    return {"accepted": (await ask("Go on?")).accepted}


@DBOS.workflow()
async def ask_ok() -> dict[str, Any]:
    """Ask for a yes or a no, and perhaps why; `ask` would leave out the reason of a no."""
    properties = {"ok": {"type": "boolean"}, "reason": {"type": "string", "title": "Reason"}}
    form = {"type": "object", "properties": properties, "required": ["ok"]}
    await DBOS.set_event_async(f"{QUESTION}deploy", {"mode": "form", "message": "Deploy?", "requestedSchema": form})
    found = await DBOS.recv_async(f"{ANSWER}deploy", 3600)
    return {"action": found["action"], **(found.get("content") or {})}


@DBOS.workflow()
async def visit(url: str) -> dict[str, Any]:
    """Send the person to a page, by a question in URL mode."""
    question = {"mode": "url", "message": "Sign the contract", "url": url, "elicitationId": "contract"}
    await DBOS.set_event_async(f"{QUESTION}contract", question)
    return {"signed": (await DBOS.recv_async(f"{ANSWER}contract", 3600))["action"]}


@DBOS.workflow()
async def rephrase() -> dict[str, Any]:
    """Put another question in the place of one that is open, once a person has agreed."""
    form = {"type": "object", "properties": {"why": {"type": "string", "title": "Why"}}}
    for name in ("First", "Second"):
        question = {"mode": "form", "message": f"{name} text?", "requestedSchema": form}
        await DBOS.set_event_async(f"{QUESTION}same", question)
        if name == "First":
            await ask("Change it?")
    return {"said": await DBOS.recv_async(f"{ANSWER}same", 3600)}


@DBOS.workflow()
async def ask_nonsense() -> dict[str, Any]:
    """Ask by a schema that is none, and whose values JavaScript cannot convert."""
    odd = {"toString": 1, "valueOf": 1}
    properties = {
        "title": {"title": odd},
        "enum": {"type": "string", "enum": {"map": 1}, "minLength": odd, "maxLength": odd},
        "preset": {"type": "array", "items": {"enum": ["a"]}, "default": {"includes": 1}},
        "least": {"type": "array", "items": {"enum": ["a"]}, "minItems": odd},
        "null": None,
        "constructor": {"type": "string"},
    }
    schema = {"type": "object", "properties": properties, "required": {"includes": 1}}
    question = {"mode": "form", "message": "Nonsense?", "requestedSchema": schema}
    await DBOS.set_event_async(f"{QUESTION}odd", question)
    return {"said": await DBOS.recv_async(f"{ANSWER}odd", 3600)}


@DBOS.workflow()
async def be_hostile() -> dict[str, Any]:
    """Write markup, scripts and controls wherever a text may stand, and far too much of it."""
    await progress(HOSTILE, 1, 2)
    field = {"type": "string", "title": HOSTILE, "description": HOSTILE, "default": HOSTILE}
    choice = {"type": "string", "title": HOSTILE, "oneOf": [{"const": HOSTILE, "title": HOSTILE}]}
    form = {"type": "object", "properties": {HOSTILE: field, "__proto__": field, "choice": choice}}
    await ask(HOSTILE + " long" * 10_000, form)  # a larger question is not shown at all
    return {"result": HOSTILE, "nested": [HOSTILE * 500]}


@DBOS.workflow()
async def fail() -> None:
    """Fail with a text."""
    raise ValueError("the card was declined")


@DBOS.workflow()
async def fail_late() -> None:
    """Fail once a person has agreed."""
    await ask("Fail now?")
    raise ValueError("the card was declined")


@DBOS.workflow()
async def forever() -> None:
    """Never end."""
    await progress("working", 3)
    await DBOS.sleep_async(10_000_000)


@DBOS.workflow()
async def answer_at_once(text: str) -> dict[str, str]:
    """Return the text."""
    return {"text": text}
