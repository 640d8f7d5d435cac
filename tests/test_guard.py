"""A probe gives way."""

import asyncio

import pytest

from mtpmon.client import LlamaClient
from mtpmon.guard import Preempted, yielding
from tests.far_end import FakeLlama


def busy(processing: int, deferred: int = 0) -> FakeLlama:
    fake = FakeLlama()
    fake.counters(requests_processing=processing, requests_deferred=deferred)
    return fake


async def run(fake: FakeLlama, *, ours: int, seconds: float = 0.6) -> str:
    async with fake.serving() as url, LlamaClient(url) as client:
        work = asyncio.sleep(seconds, "done")
        return await yielding(work, client, own_requests=lambda: (ours, 0))


async def test_work_without_company_is_done() -> None:
    """Our own request on the server is not somebody else's."""
    assert await run(busy(1), ours=1) == "done"


@pytest.mark.parametrize(
    ("processing", "deferred", "ours"), [(2, 0, 1), (1, 1, 1), (1, 0, 0), (0, 1, 0)]
)
async def test_somebody_elses_request_ends_it(processing: int, deferred: int, ours: int) -> None:
    """Running beside ours, waiting behind it, or come while we talk to the other server."""
    with pytest.raises(Preempted):
        await run(busy(processing, deferred), ours=ours, seconds=30)


async def test_work_is_over_when_it_is_given_up() -> None:
    """Its connection is closed before anything else happens."""
    ended = []

    async def work() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            ended.append(1)

    async with busy(2).serving() as url, LlamaClient(url) as client:
        with pytest.raises(Preempted):
            await yielding(work(), client, own_requests=lambda: (1, 0))
        assert ended == [1]


async def test_an_answer_across_a_change_of_ours_does_not_count() -> None:
    """It may be of the time before."""
    marks = iter(range(10_000))
    async with busy(2).serving() as url, LlamaClient(url) as client:
        work = asyncio.sleep(0.5, "done")
        assert await yielding(work, client, own_requests=lambda: (1, next(marks))) == "done"


@pytest.mark.parametrize("metrics", [b"", b"<html>"])
async def test_answers_that_tell_nothing_do_not_end_it(metrics: bytes) -> None:
    """Nor do failures: the probe has its own time limit."""
    fake = FakeLlama(metrics=metrics)
    assert await run(fake, ours=1, seconds=0.3) == "done"
    assert await run(FakeLlama(status={"/metrics": 500}), ours=1, seconds=0.3) == "done"


async def test_a_fault_of_the_work_is_passed_on() -> None:
    """Not swallowed."""

    async def work() -> None:
        raise ZeroDivisionError

    async with busy(1).serving() as url, LlamaClient(url) as client:
        with pytest.raises(ZeroDivisionError):
            await yielding(work(), client, own_requests=lambda: (1, 0))


async def test_cancelling_ends_both() -> None:
    """At shutdown no task is left behind."""
    async with busy(1).serving() as url, LlamaClient(url) as client:
        task = asyncio.create_task(yielding(asyncio.sleep(30), client, own_requests=lambda: (1, 0)))
        await asyncio.sleep(0.1)
        before = len(asyncio.all_tasks())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(asyncio.all_tasks()) < before
