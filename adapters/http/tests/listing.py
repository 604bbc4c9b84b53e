"""The contract of a job API whose `batch_status` lists those that run."""

from __future__ import annotations

from mcp_workflows.adapter import Adapter, DescribesMany, Ref, Status
from mcp_workflows.testing import AdapterContract, Subject
from mcp_workflows.testing.laws import cancelled_afterwards, new_start, ref_of, see_questions, until_ended


class ListingContract(AdapterContract):
    """The list has neither ends nor questions: what is not in it is described."""

    async def test_describe_many_sees_what_describe_sees(self, subject: Subject, adapter: Adapter) -> None:
        """The list tells who runs; who has ended is left out, and then described."""
        assert isinstance(adapter, DescribesMany)
        ended = new_start(subject.finishes)
        over = ref_of(ended, await adapter.start(ended))
        await until_ended(subject, adapter, over)
        async with cancelled_afterwards(subject, adapter, new_start(subject.endless)) as ref:
            swept = await adapter.describe_many([ref, over, Ref(workflow="", handle=subject.unknown_handle)])
        assert {handle: seen.status for handle, seen in swept.items()} == {ref.handle: Status.RUNNING}

    async def test_describe_many_shows_questions(self, subject: Subject, adapter: Adapter) -> None:
        """No list shows questions: an execution that may ask is left out, or it differs, and then it is described."""
        assert isinstance(adapter, DescribesMany)
        ref, _ = await see_questions(subject, adapter, subject.asks)
        swept = await adapter.describe_many([ref])
        assert {each.status for each in swept.values()} <= {Status.INPUT_REQUIRED}
