"""Acme's engraving workshop: an in-house HTTP system that knows nothing of MCP.

Orders are kept in SQLite. Progress is made of the clock and of what people decide, so nothing is lost in a restart.

    python server.py --database workshop.db --port 8099

| request                     | does                                                                     |
|-----------------------------|--------------------------------------------------------------------------|
| POST /orders                | takes an order; the same Idempotency-Key is the same order               |
| GET /orders/ID              | how it stands                                                            |
| POST /orders/ID/decisions   | what people decided: {"front": {"approved": true}}                       |
| POST /orders/ID/withdrawal  | withdraws it                                                             |
| GET /products               | what can be ordered                                                      |
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sqlite3
import time
import uuid
from typing import Any, Literal

import uvicorn
from pydantic import BaseModel, Field, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

PRODUCTS = {"plate": 20, "trophy": 40}  # how many letters fit on it
TABLE = """create table if not exists orders
    (id text primary key, key text unique, product text, details text, taken real, decisions text, withdrawn real)"""


class Details(BaseModel):
    """What is engraved, how long that may take, and of which sides a person approves the proof."""

    text: str = Field(min_length=1)
    days: int = Field(default=0, ge=0)
    proofs: list[str] = Field(default_factory=list[str])


class Order(BaseModel):
    """The body of POST /orders."""

    product: Literal["plate", "trophy"]
    details: Details


class Workshop:
    """The orders, and what becomes of them."""

    def __init__(self, path: str) -> None:
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.row_factory = sqlite3.Row
        self._database.execute(TABLE)

    def take(self, key: str, order: Order) -> dict[str, Any]:
        row = (f"E-{uuid.uuid4().hex[:8]}", key, order.product, order.details.model_dump_json(), time.time(), "{}")
        self._database.execute("insert or ignore into orders values (?, ?, ?, ?, ?, ?, null)", row)
        (found,) = self._database.execute("select * from orders where key = ?", (key,))
        if (found["product"], found["details"]) != row[2:4]:
            raise HTTPException(409, "this Idempotency-Key belongs to another order")
        return self.look(found["id"])

    def look(self, order: str) -> dict[str, Any]:
        """How an order stands: a function of what was ordered, decided and withdrawn, and of the clock."""
        row = self._row(order)
        details, decisions = json.loads(row["details"]), json.loads(row["decisions"])
        days, room = details["days"], PRODUCTS[row["product"]]
        age = (row["withdrawn"] or time.time()) - row["taken"]
        seen: dict[str, Any] = {"id": order, "progress": [min(days, int(age / 86400)), days], "questions": {}}
        open_questions = {
            name: f"Is the proof of the {name} right? {details['text']}"
            for name in details["proofs"]
            if name not in decisions
        }
        if row["withdrawn"]:
            return {**seen, "state": "withdrawn"}
        if len(details["text"]) > room:
            return {**seen, "state": "rejected", "reason": f"a {row['product']} has room for {room} letters"}
        if refused := [name for name, decision in decisions.items() if not decision.get("approved")]:
            return {**seen, "state": "rejected", "reason": f"the proof of the {refused[0]} was not approved"}
        if open_questions:
            return {**seen, "state": "proofing", "questions": open_questions}
        if age < days * 86400:
            return {**seen, "state": "engraving"}
        return {**seen, "state": "ready", "made": {"product": row["product"], "letters": len(details["text"])}}

    def decide(self, order: str, decisions: dict[str, Any]) -> None:
        asked = self.look(order)["questions"]
        known = json.loads(self._row(order)["decisions"]) | {k: v for k, v in decisions.items() if k in asked}
        self._database.execute("update orders set decisions = ? where id = ?", (json.dumps(known), order))

    def withdraw(self, order: str) -> None:
        if self.look(order)["state"] in ("engraving", "proofing"):
            self._database.execute("update orders set withdrawn = ? where id = ?", (time.time(), order))

    def _row(self, order: str) -> sqlite3.Row:
        for row in self._database.execute("select * from orders where id = ?", (order,)):
            return row
        raise HTTPException(404, f"there is no order {order}")


def build(workshop: Workshop, api_key: str) -> Starlette:
    """The HTTP side. One thread, one database connection: each request is one step."""

    def check(request: Request) -> None:
        if request.headers.get("authorization") != f"Bearer {api_key}":
            raise HTTPException(401, "who are you?")

    async def take(request: Request) -> JSONResponse:
        check(request)
        body, key = await request.json(), request.headers.get("idempotency-key")
        try:
            order = Order.model_validate(body)
        except ValidationError as error:
            wrong = error.errors()[0]
            raise HTTPException(422, f"{'.'.join(map(str, wrong['loc']))}: {wrong['msg']}") from None
        if not key:
            raise HTTPException(422, "an order needs an Idempotency-Key")
        return JSONResponse(workshop.take(key, order), 201)

    async def look(request: Request) -> JSONResponse:
        check(request)
        return JSONResponse(workshop.look(request.path_params["order"]))

    async def decide(request: Request) -> JSONResponse:
        check(request)
        workshop.decide(request.path_params["order"], await request.json())
        return await look(request)

    async def withdraw(request: Request) -> JSONResponse:
        check(request)
        workshop.withdraw(request.path_params["order"])
        return await look(request)

    async def products(request: Request) -> JSONResponse:
        check(request)
        return JSONResponse(list(PRODUCTS))

    async def complain(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        return JSONResponse({"error": error.detail}, error.status_code)

    routes = [
        Route("/orders", take, methods=["POST"]),
        Route("/orders/{order}", look),
        Route("/orders/{order}/decisions", decide, methods=["POST"]),
        Route("/orders/{order}/withdrawal", withdraw, methods=["POST"]),
        Route("/products", products),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: complain})


def main() -> None:
    parser = argparse.ArgumentParser(description="Acme's engraving workshop")
    parser.add_argument("--database", default="workshop.db")
    parser.add_argument("--port", type=int, default=8099, help="0: any free one, see the first line of the output")
    options = parser.parse_args()
    listener = socket.create_server(("127.0.0.1", options.port))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    app = build(Workshop(options.database), os.environ.get("ACME_API_KEY", "letmein"))
    uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)).run(sockets=[listener])


if __name__ == "__main__":
    main()
