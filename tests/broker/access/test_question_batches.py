"""QuestionBatches: what waits for a connection is asked together, and each question has its own answer."""

import asyncio
from collections.abc import Callable

import pytest

from taipan.broker.access.database import Values
from taipan.broker.access.question_batches import QuestionBatches
from taipan.broker.access.remote import SourceFailed

pytestmark = pytest.mark.asyncio


class Database:
    """Answers a batch when the test says so. ``asked``: the query and the usernames of each batch."""

    def __init__(self, connections: int, largest: int) -> None:
        self.asked: list[tuple[str, list[str]]] = []
        self.gone: list[list[str]] = []
        self.answers: list[asyncio.Future[Callable[[str], str | SourceFailed]]] = []
        self.batches: QuestionBatches[str] = QuestionBatches(self._ask, connections)
        self.batches.largest = largest

    async def _ask(self, query: str, questions: list[Values]) -> list[str | SourceFailed]:
        names = [values["u"] for values in questions]
        self.asked.append((query, names))
        future: asyncio.Future[Callable[[str], str | SourceFailed]] = asyncio.get_running_loop().create_future()
        self.answers.append(future)
        try:
            answer = await future
        except asyncio.CancelledError:
            self.gone.append(names)
            raise
        return [answer(name) for name in names]

    async def come(self, *names: str, query: str = "auth") -> "list[asyncio.Task[str]]":
        tasks = [asyncio.create_task(self.batches.ask(query, {"u": name})) for name in names]
        await self.turn()
        return tasks

    async def answer(self, number: int, answer: Callable[[str], str | SourceFailed] = str.upper) -> None:
        self.answers[number].set_result(answer)
        await self.turn()

    async def fail(self, number: int, failure: Exception) -> None:
        self.answers[number].set_exception(failure)
        await self.turn()

    async def turn(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


async def test_a_free_connection_is_used_immediately_and_what_waits_is_asked_together() -> None:
    database = Database(2, 3)
    tasks = await database.come(*"abcdefg")
    assert database.asked == [("auth", ["a"]), ("auth", ["b"])]
    await database.answer(0)
    assert database.asked[2:] == [("auth", ["c", "d", "e"])]
    await database.answer(1)
    assert database.asked[3:] == [("auth", ["f", "g"])]
    await database.answer(3)
    await database.answer(2)
    assert await asyncio.gather(*tasks) == list("ABCDEFG")


async def test_queries_take_turns() -> None:
    database = Database(1, 2)
    tasks = await database.come(*"abcdef") + await database.come("x", "y", "z", query="acl")
    for number in range(6):
        await database.answer(number)
    await asyncio.gather(*tasks)
    assert [query for query, _ in database.asked] == ["auth", "auth", "acl", "auth", "acl", "auth"]


async def test_one_question_without_an_answer() -> None:
    database = Database(1, 3)
    _, b, c = await database.come(*"abc")
    await database.answer(0)
    await database.answer(1, lambda name: SourceFailed("query") if name == "b" else name)
    assert await c == "c"
    with pytest.raises(SourceFailed):
        await b


async def test_what_is_given_up_ends_its_batch_only_if_nobody_waits() -> None:
    database = Database(1, 2)
    a, b, c, d = await database.come(*"abcd")
    b.cancel()
    a.cancel()
    await database.turn()
    assert database.gone == [["a"]] and database.asked[1:] == [("auth", ["c", "d"])]
    c.cancel()
    await database.turn()
    assert database.gone == [["a"]]
    d.cancel()
    await database.turn()
    assert database.gone == [["a"], ["c", "d"]]
    (e,) = await database.come("e")
    await database.answer(2)
    assert await e == "E"


async def test_a_connection_that_fails_while_another_one_works() -> None:
    database = Database(2, 2)
    a, b, c = await database.come(*"abc")
    await database.fail(0, SourceFailed("no_connection", away=True))
    assert database.asked[2:] == [("auth", ["c", "a"])]
    await database.fail(2, SourceFailed("no_connection", away=True))
    with pytest.raises(SourceFailed) as failed:
        await a
    assert failed.value.away
    assert database.asked[3:] == [("auth", ["c"])]
    await database.answer(3)
    await database.answer(1)
    assert [await b, await c] == ["B", "C"]


@pytest.mark.parametrize("failure", [SourceFailed("query"), RuntimeError("broken")])
async def test_what_no_other_connection_would_change_is_not_asked_again(failure: Exception) -> None:
    database = Database(2, 2)
    a, b = await database.come(*"ab")
    await database.fail(0, failure)
    with pytest.raises(type(failure)):
        await a
    assert len(database.asked) == 2
    await database.answer(1)
    assert await b == "B"
