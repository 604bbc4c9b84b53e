"""The worker: deploys the state machines, does the steps of the shop, and has stopped orders undone.

It knows nothing of MCP: a step is an activity that it takes with long polls, as any activity worker does.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import asdict
from typing import Any

import deployment
from botocore.exceptions import BotoCoreError, ClientError
from shop import CardDeclinedError, Order, OrderCancelledError, OutOfStockError, Shop

REFUSED = (OutOfStockError, CardDeclinedError, OrderCancelledError)
BEAT = 5.0  # seconds; the state machines give up a step after 20 without a word
NAME = f"{socket.gethostname()}-{os.getpid()}"

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


class Worker:
    """Takes tasks with one long poll per step, in threads; does them in one event loop."""

    def __init__(self, states: Any, shop: Shop) -> None:  # Any: clients of boto3 have no types
        self._states = states
        self._shop = shop
        self._loop = asyncio.get_running_loop()
        self._in_hand: set[asyncio.Task[None]] = set()

    def take(self, step: str, activity: str) -> None:
        """Wait for a task of this step, up to a minute, and do it while we wait for the next."""
        task = self._states.get_activity_task(activityArn=activity, workerName=NAME)
        if token := task.get("taskToken"):
            self._loop.call_soon_threadsafe(self._begin, step, token, json.loads(task["input"]))

    async def finish(self) -> None:
        """End what is in hand. What an open poll may still be given comes back when its heartbeat stays away."""
        await asyncio.gather(*self._in_hand)

    def _begin(self, step: str, token: str, arguments: dict[str, Any]) -> None:
        doing = self._loop.create_task(self._do(step, token, arguments))
        self._in_hand.add(doing)
        doing.add_done_callback(self._in_hand.discard)

    async def _do(self, step: str, token: str, arguments: dict[str, Any]) -> None:
        if "order" in arguments:
            arguments["order"] = Order(**arguments["order"])
        doing = asyncio.ensure_future(STEPS[step](self._shop, **arguments))
        beating = asyncio.create_task(self._beat(token, doing))
        try:
            output = json.dumps(await doing, default=asdict)
        except asyncio.CancelledError:
            _say(f"{step} was dropped: its execution was stopped")
        except REFUSED as error:
            await self._send(self._states.send_task_failure, token, error=type(error).__name__, cause=str(error))
        else:
            await self._send(self._states.send_task_success, token, output=output)
            self._tell(step, arguments.get("key", ""))
        finally:
            beating.cancel()

    def _tell(self, step: str, key: str) -> None:
        """Say what was undone; of an order that was shipped, nothing is."""
        fact, words = UNDONE.get(step, ("", ""))
        if fact in self._shop.books()["ledger"].get(key, {}):
            _say(f"undone: {words} ({key})")

    async def _beat(self, token: str, doing: asyncio.Future[Any]) -> None:
        """Say that we live; so we hear that the execution was stopped, and stop too."""
        while True:
            await asyncio.sleep(BEAT)
            if not await self._send(self._states.send_task_heartbeat, token):
                doing.cancel()

    async def _send(self, send: Callable[..., object], token: str, **what: str) -> bool:
        """Whether the execution still waits for this task."""
        try:
            await asyncio.to_thread(send, taskToken=token, **what)
        except (self._states.exceptions.TaskTimedOut, self._states.exceptions.TaskDoesNotExist):
            return False
        except (BotoCoreError, ClientError) as error:  # tried again already; without our word the step is retried
            _say(f"{type(error).__name__}: {error}")
        return True


class Undoer:
    """Starts `undo_order` for each order that was stopped; named like it, so that starting twice is starting once."""

    def __init__(self, states: Any, queues: Any, queue: str, machine: str) -> None:
        self._states = states
        self._queues = queues
        self._queue = queue
        self._machine = machine

    def take(self) -> None:
        """Wait for stopped orders, up to 20 s."""
        reply = self._queues.receive_message(QueueUrl=self._queue, WaitTimeSeconds=20, MaxNumberOfMessages=10)
        for message in reply.get("Messages", []):
            self._undo(json.loads(message["Body"])["detail"])
            self._queues.delete_message(QueueUrl=self._queue, ReceiptHandle=message["ReceiptHandle"])

    def _undo(self, detail: Mapping[str, Any]) -> None:
        what = {name: detail[name] for name in ("name", "executionArn", "status")}
        try:
            self._states.start_execution(
                stateMachineArn=self._machine, name=detail["name"], input=json.dumps(what, sort_keys=True)
            )
        except self._states.exceptions.ExecutionAlreadyExists:
            return
        _say(f"{detail['name']} is {detail['status']}: undo_order has started")


def follow(take: Callable[..., None], *arguments: str) -> None:
    """Take again and again, in a thread that never keeps the process from ending."""

    def again() -> None:
        while True:
            try:
                take(*arguments)
            except (BotoCoreError, ClientError) as error:
                _say(f"{type(error).__name__}: {error}")
                time.sleep(1)

    threading.Thread(target=again, daemon=True).start()


def _say(words: str) -> None:
    print(words, flush=True)


async def main() -> None:
    """Work until SIGTERM or SIGINT. The machines are deployed last: when they are there, somebody works for them."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    states, events, queues = (deployment.client(service) for service in ("stepfunctions", "events", "sqs"))
    worker = Worker(states, Shop.from_environment())
    arns = deployment.activities(states, STEPS)
    for step, arn in arns.items():
        follow(worker.take, step, arn)
    fulfil, undo = (deployment.machine_arn(arns["reserve"], name) for name in ("fulfil_order", "undo_order"))
    queue = deployment.queue_of_stopped(events, queues, fulfil)
    follow(Undoer(states, queues, queue, undo).take)
    deployment.machines(states, arns)
    _say("deployed, and working")
    await stopped.wait()
    await worker.finish()


if __name__ == "__main__":
    asyncio.run(main())
