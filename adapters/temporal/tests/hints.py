"""Workflows with every kind of signature, for the derivation of schemas."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, time
from typing import Annotated, Any

from pydantic import AwareDatetime, BaseModel, Field, NaiveDatetime
from temporalio import workflow
from typing_extensions import TypedDict


class Item(BaseModel):
    sku: str
    count: int = 1


class Order(BaseModel):
    items: list[Item]
    note: str | None = None


class Tree(BaseModel):
    children: list[Tree] = []


class Totals(TypedDict):
    total: float


@dataclass
class Receipt:
    id: str
    items: list[Item]


class Times(BaseModel):
    plain: datetime | None = None
    aware: AwareDatetime | None = None
    naive: NaiveDatetime | None = None
    at: time | None = None


@workflow.defn
class Timed:
    @workflow.run
    async def run(self, times: Times) -> Times: ...  # type: ignore[empty-body]  # pyright: ignore[reportReturnType]


@workflow.defn
class OneModel:
    @workflow.run
    async def run(self, order: Order) -> Receipt: ...  # type: ignore[empty-body]  # pyright: ignore[reportReturnType]


@workflow.defn
class OneDataclass:
    @workflow.run
    async def run(self, receipt: Receipt) -> str: ...  # type: ignore[empty-body]  # pyright: ignore[reportReturnType]


@workflow.defn
class Recursive:
    @workflow.run
    async def run(self, tree: Tree) -> Tree: ...  # type: ignore[empty-body]  # pyright: ignore[reportReturnType]


@workflow.defn
class Positional:
    @workflow.run
    async def run(self, order_id: str, express: bool = False) -> dict[str, Any]: ...  # type: ignore[empty-body]  # pyright: ignore[reportReturnType]


@workflow.defn
class SharedModels:
    @workflow.run
    async def run(self, first: Item, second: Item) -> Totals: ...  # type: ignore[empty-body]  # pyright: ignore[reportReturnType]


@workflow.defn
class Defaults:
    @workflow.run
    async def run(self, a: int = 1, b: list[int] | None = None, c: bool = True, task: str = "t") -> list[int]: ...  # type: ignore[empty-body]  # pyright: ignore[reportReturnType]


@workflow.defn
class Described:
    @workflow.run
    async def run(self, count: Annotated[int, Field(ge=1, description="How many")]) -> None: ...


@workflow.defn
class Nothing:
    @workflow.run
    async def run(self) -> None: ...


@workflow.defn
class Untyped:
    @workflow.run
    async def run(self, anything, more=None): ...  # type: ignore[no-untyped-def]  # pyright: ignore[reportUnknownParameterType, reportMissingParameterType]


@workflow.defn
class NoSchema:
    @workflow.run
    async def run(self, value: OneModel) -> None: ...


class NoWorkflow: ...


number = 7
