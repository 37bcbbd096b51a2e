"""QuestionBatches: questions that wait for a connection to a database, and that the database answers together.

After a restart, thousands of clients log in at once. If each of them needed an exchange of its own, a database that is
20 ms away could answer no more than 400 clients a second over eight connections."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

from .database import Values
from .remote import SourceFailed

Answer = TypeVar("Answer")


class _Question(Generic[Answer]):
    """``future``: done when it is answered, or when nothing waits for its answer any more. ``repeated``: a batch with
    it has failed before."""

    __slots__ = ("future", "repeated", "values")

    def __init__(self, values: Values, future: "asyncio.Future[Answer]") -> None:
        self.values = values
        self.future = future
        self.repeated = False


class QuestionBatches(Generic[Answer]):
    """Belongs to one event loop. A question is asked immediately while fewer than ``connections`` batches are under
    way. Those that come later wait, and become batches of at most ``largest`` questions with the same query."""

    def __init__(
        self, ask: Callable[[str, list[Values]], Awaitable[Sequence[Answer | SourceFailed]]], connections: int
    ) -> None:
        """``ask`` returns the answer to each question about a query, or why that question has none. It raises
        SourceFailed if none was answered."""
        self.largest = 1
        self._ask = ask
        self._connections = connections
        self._under_way = 0
        self._waiting: OrderedDict[str, deque[_Question[Answer]]] = OrderedDict()

    async def ask(self, query: str, values: Values) -> Answer:
        """Return the answer to a question. Raises SourceFailed."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(query, deque()).append(_Question(values, future))
        self._begin()
        return await future

    def _begin(self) -> None:
        while self._waiting and self._under_way < self._connections:
            query, line = next(iter(self._waiting.items()))
            batch: list[_Question[Answer]] = []
            while line and len(batch) < self.largest:
                question = line.popleft()
                if not question.future.done():
                    batch.append(question)
            if line:
                self._waiting.move_to_end(query)  # the queries take turns
            else:
                del self._waiting[query]
            if batch:
                self._under_way += 1
                task = asyncio.get_running_loop().create_task(self._answer(query, batch))
                for question in batch:
                    question.future.add_done_callback(partial(self._left, task, batch))

    def _left(self, task: "asyncio.Task[None]", batch: list[_Question[Answer]], done: "asyncio.Future[Answer]") -> None:
        """End a batch for whose answers nothing waits, so that its connection is closed."""
        if all(question.future.done() for question in batch):
            task.cancel()

    async def _answer(self, query: str, batch: list[_Question[Answer]]) -> None:
        try:
            answers = await self._ask(query, [question.values for question in batch])
        except SourceFailed as failure:
            self._failed(query, batch, failure)
        except Exception as error:
            for question in batch:
                if not question.future.done():
                    question.future.set_exception(error)
        else:
            for question, answer in zip(batch, answers, strict=True):
                if question.future.done():
                    continue
                if isinstance(answer, SourceFailed):
                    question.future.set_exception(answer)
                else:
                    question.future.set_result(answer)
        finally:
            self._under_way -= 1
            self._begin()

    def _failed(self, query: str, batch: list[_Question[Answer]], failure: SourceFailed) -> None:
        """Ask once more over another connection, for example if the database accepts no further connection."""
        for question in batch:
            if question.future.done():
                continue
            if failure.away and self._under_way > 1 and not question.repeated:
                question.repeated = True
                self._waiting.setdefault(query, deque()).append(question)
            else:
                question.future.set_exception(
                    SourceFailed(failure.reason, failure.setting, failure.detail, failure.away)
                )
