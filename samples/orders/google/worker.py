"""The worker: deploys the workflows, serves the steps of the shop over HTTP, and has stopped orders undone.

It knows nothing of MCP: a step is a POST that a workflow sends, with an OpenID Connect token of the account it runs as.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import deployment
import jwt
import uvicorn
from google.api_core.exceptions import GoogleAPICallError, NotFound
from google.cloud.workflows.executions_v1 import Execution
from jwt.types import Options
from shop import CardDeclinedError, Order, OrderCancelledError, OutOfStockError, Shop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

REFUSED = (OutOfStockError, CardDeclinedError, OrderCancelledError)
EVERY = 1.0  # seconds, from one look at the orders under way to the next
MUST: Options = {"require": ["exp", "iat"]}  # of a token
ENDED_BADLY = (Execution.State.CANCELLED, Execution.State.FAILED)

STEPS: Mapping[str, Callable[..., Coroutine[Any, Any, Any]]] = {
    "look_up": Shop.look_up,
    "reserve": Shop.reserve,
    "charge": Shop.charge,
    "pack": Shop.pack,
    "ship": Shop.ship,
    "refund": Shop.refund,
    "release": Shop.release,
}
UNDONE = {"refund": ("refunded", "the card was refunded"), "release": ("released", "the stock was released")}


class Gatekeeper:
    """Lets in who has a token for this shop, of the account that the workflows run as."""

    def __init__(self, url: str) -> None:
        issuer = f"http://{deployment.EMULATOR}" if deployment.EMULATOR else "https://accounts.google.com"
        keys = f"{issuer}/oauth2/v3/certs" if deployment.EMULATOR else "https://www.googleapis.com/oauth2/v3/certs"
        self._url = url
        self._issuer = issuer
        self._keys = jwt.PyJWKClient(keys, timeout=10)

    async def knows(self, request: Request) -> bool:
        """Whether the request is from one of our workflows."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        return scheme.lower() == "bearer" and await asyncio.to_thread(self._trusts, token)

    def _trusts(self, token: str) -> bool:
        try:
            key = self._keys.get_signing_key_from_jwt(token)
            claims = jwt.decode(token, key, algorithms=["RS256"], audience=self._url, issuer=self._issuer, options=MUST)
        except jwt.PyJWTError:
            return False
        return claims.get("email") == deployment.ACCOUNT and claims.get("email_verified") is True


class Service:
    """The shop over HTTP: `POST /charge` with the arguments as JSON. 409 says that trying again is of no use."""

    def __init__(self, shop: Shop, gatekeeper: Gatekeeper) -> None:
        self._shop = shop
        self._gatekeeper = gatekeeper
        self.app = Starlette(routes=[Route("/{step}", self._serve, methods=["POST"])])

    async def _serve(self, request: Request) -> JSONResponse:
        step = request.path_params["step"]
        if not await self._gatekeeper.knows(request):
            return JSONResponse({"error": "Unauthorized", "message": "a token is needed"}, 401)
        if step not in STEPS:
            return JSONResponse({"error": "NotFound", "message": "there is no such step"}, 404)
        arguments = await request.json()
        if "order" in arguments:
            arguments["order"] = Order(**arguments["order"])
        return await self._do(step, arguments)

    async def _do(self, step: str, arguments: dict[str, Any]) -> JSONResponse:
        try:
            done = await STEPS[step](self._shop, **arguments)
        except REFUSED as error:
            return JSONResponse({"error": type(error).__name__, "message": str(error)}, 409)
        self._tell(step, arguments.get("key", ""))
        return JSONResponse(asdict(done) if isinstance(done, Order) else done)

    def _tell(self, step: str, key: str) -> None:
        """Say what was undone; of an order that was shipped, nothing is."""
        fact, words = UNDONE.get(step, ("", ""))
        if fact in self._shop.books()["ledger"].get(key, {}):
            _say(f"undone: {words} ({key})")


class Undoer:
    """Starts `undo_order` for each order under way whose execution was stopped; undoing twice is undoing once.

    Google stops an execution at once and runs none of its steps any more, so somebody has to look.
    """

    def __init__(self, client: Any, shop: Shop) -> None:  # Any: its methods are typed in part only
        self._client = client
        self._shop = shop
        self._seen_to: set[str] = set()

    async def watch(self) -> None:
        """Look again and again."""
        while True:
            await asyncio.sleep(EVERY)
            for key in list(self._under_way()):
                try:
                    await self._look(key)
                except NotFound:
                    self._seen_to.add(key)
                except GoogleAPICallError as error:
                    _say(f"{type(error).__name__}: {error.message}")

    def _under_way(self) -> Iterator[str]:
        """The keys of what was reserved, and neither shipped nor released; a key is the id of an execution."""
        ledger = self._shop.books()["ledger"]
        for key, entry in ledger.items():
            if "reserved" in entry and not {"shipped", "released"} & entry.keys() and key not in self._seen_to:
                yield key

    async def _look(self, key: str) -> None:
        name = self._client.execution_path(deployment.PROJECT, deployment.LOCATION, "fulfil_order", key)
        state = (await self._client.get_execution(name=name, timeout=deployment.SECONDS)).state
        if state not in ENDED_BADLY:
            return
        undo = self._client.workflow_path(deployment.PROJECT, deployment.LOCATION, "undo_order")
        argument = json.dumps({"key": key})
        await self._client.create_execution(
            parent=undo, execution=Execution(argument=argument), timeout=deployment.SECONDS
        )
        self._seen_to.add(key)
        _say(f"{key} is {state.name}: undo_order has started")


def _say(words: str) -> None:
    print(words, flush=True)


def listen() -> tuple[socket.socket, str]:
    """Where the shop is: at `SHOP_URL`, which leads to our `PORT`; without it, on a port of this machine alone."""
    if url := os.environ.get("SHOP_URL"):
        return socket.create_server(("", int(os.environ.get("PORT", "8080")))), url
    listener = socket.create_server(("127.0.0.1", int(os.environ.get("SHOP_PORT", "0"))))
    return listener, f"http://127.0.0.1:{listener.getsockname()[1]}"


def environment(url: str) -> Mapping[str, str]:
    """What the workflows have to know: where the shop is, and the sidecar that they ask by."""
    sidecar = os.environ.get("MCP_WORKFLOWS_URL", "http://127.0.0.1:8931/engines/google")
    audience = os.environ.get("MCP_WORKFLOWS_AUDIENCE", "http://127.0.0.1:8931")
    return {"SHOP_URL": url, "MCP_WORKFLOWS_URL": sidecar, "MCP_WORKFLOWS_AUDIENCE": audience}


async def main() -> None:
    """Work until SIGTERM or SIGINT. The workflows are deployed last: when they are there, somebody works for them."""
    shop = Shop.from_environment()
    listener, url = listen()
    service = Service(shop, Gatekeeper(url))
    server = uvicorn.Server(uvicorn.Config(service.app, log_level="warning", lifespan="off"))
    async with deployment.workflows() as workflows, deployment.executions() as executions, asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(server.serve(sockets=[listener]))
        undoing = tasks.create_task(Undoer(executions, shop).watch())
        await deployment.deploy(workflows, environment(url))
        _say("deployed, and working")
        await serving
        undoing.cancel()


if __name__ == "__main__":
    asyncio.run(main())
