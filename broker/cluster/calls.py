"""Calls: questions to other nodes, and answers. A question is one message. An answer may have any size up to
``MAX_ANSWER``, and is fetched in parts."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

import msgspec

from ..core.cluster import CallFailed, Handler, NodeUnreachable
from .context import ClusterContext
from .nats.interface import NoAnswer, NoResponders, Unavailable
from .tasks import Tasks
from .wire import MALFORMED, OVERHEAD, UNREADABLE, Header, Reply, Request

logger = logging.getLogger(__name__)

MAX_CALLS: Final = 4096
"""Maximum number of other nodes' questions that are answered at the same time."""
MAX_ANSWER: Final = 268_435_456
MAX_KEPT: Final = 268_435_456
"""Maximum size of long answers that are stored until the asking node has fetched the rest."""
ANSWERS_FULL: Final = "answers_full"


BodyT = TypeVar("BodyT")


class Calls:
    """Questions to other nodes, and answers to theirs. ``call`` asks a node, and ``serve`` registers the function that
    answers a method. ``kept_bytes`` is the size of the answers that other nodes have not fetched completely."""

    def __init__(self, context: ClusterContext) -> None:
        self._context = context
        self._nats = context.nats
        self._handlers: dict[str, Handler] = {}
        self._requests = context.wire.reader(Request)
        self._replies = context.wire.reader(Reply)
        self._next = 1
        self._tasks = Tasks()
        # (node, incarnation, number) -> the whole answer, and the timer that drops it
        self._kept: dict[tuple[str, int, int], tuple[bytes, asyncio.TimerHandle]] = {}
        self.kept_bytes = 0

    def start(self) -> None:
        """Start answering."""
        self._nats.subscribe(self._context.subject("call", self._context.node), self._asked)

    async def stop(self) -> None:
        """Stop answering."""
        await self._tasks.stop()
        for key in list(self._kept):
            self._drop(key)

    def serve(self, method: str, handler: Handler) -> None:
        """Answer calls of ``method`` with ``handler`` from now on."""
        self._handlers[method] = handler

    def decoded(self, node: str, data: bytes, kind: type[BodyT]) -> BodyT:
        """Decode the question or the answer of a node.

        :raises CallFailed: it cannot be read."""
        try:
            return msgspec.msgpack.decode(data, type=kind)
        except UNREADABLE:
            self._context.refusals.add(MALFORMED, node, "-")
            raise CallFailed(f"{node}: its answer cannot be read") from None

    # -------------------------------------------------------------------- asking

    async def call(self, node: str, method: str, argument: bytes, timeout: float | None = None) -> bytes:
        """See ``core.cluster.Cluster.call``."""
        return await self.send_call(node, method, argument, timeout)

    def send_call(
        self, node: str, method: str, argument: bytes, timeout: float | None = None
    ) -> Coroutine[Any, Any, bytes]:
        """Send a question immediately, before everything that is sent later. The coroutine waits for the answer.

        :raises CallFailed: the question is too long. :raises NodeUnreachable: this node is not connected to NATS."""
        if len(argument) + OVERHEAD > self._nats.max_payload:
            raise CallFailed(f"a request of {len(argument)} bytes exceeds max_payload of NATS")
        number = self._next
        self._next += 1
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self._context.settings.call_timeout if timeout is None else timeout)
        first = self._ask(node, Request(number, method, argument), deadline - loop.time())
        return self._whole_answer(node, number, first, deadline)

    async def _whole_answer(self, node: str, number: int, asked: Coroutine[Any, Any, Reply], deadline: float) -> bytes:
        loop = asyncio.get_running_loop()
        first = await asked
        if first.failure:
            raise CallFailed(first.failure)
        if len(first.part) == first.size:
            return first.part
        if first.size > MAX_ANSWER:
            raise CallFailed(f"{node}: an answer of {first.size} bytes is too long")
        parts = [first.part]
        offset = len(first.part)
        while offset < first.size:
            reply = await self._ask(node, Request(number, "", b"", offset), deadline - loop.time())
            if reply.failure or not reply.part:
                raise NodeUnreachable(f"{node}: the rest of its answer is no longer available")
            parts.append(reply.part)
            offset += len(reply.part)
        if offset > first.size:
            self._context.refusals.add(MALFORMED, node, "-")
            raise CallFailed(f"{node}: its answer is longer than announced")
        # The whole answer has arrived, so the other node need not store it.
        done = self._context.wire.write(Request(number, "", b"", offset))
        self._nats.publish(self._context.subject("call", node), done)
        return b"".join(parts)

    def _ask(self, node: str, request: Request, timeout: float) -> Coroutine[Any, Any, Reply]:
        data = self._context.wire.write(request)
        try:
            asked = self._nats.send_request(self._context.subject("call", node), data, max(timeout, 0.001))
        except Unavailable:
            raise NodeUnreachable(f"{node}: this node is not connected to NATS") from None
        return self._reply_of(node, asked)

    async def _reply_of(self, node: str, asked: Coroutine[Any, Any, bytes]) -> Reply:
        try:
            answer = await asked
        except NoResponders:
            raise NodeUnreachable(f"{node} is not connected to NATS") from None
        except NoAnswer:
            raise NodeUnreachable(f"{node}: no answer in time (cluster.call_timeout)") from None
        except Unavailable:
            raise NodeUnreachable(f"{node}: this node is not connected to NATS") from None
        found = self._replies.message(answer)
        if found is None or found[0].node != node:
            raise NodeUnreachable(f"{node}: its answer cannot be accepted")
        return found[1]

    # ----------------------------------------------------------------- answering

    def _asked(self, data: bytes, reply: str) -> None:
        found = self._requests.message(data)
        if found is None:
            return
        header, request = found
        if not reply:
            self._drop((header.node, header.incarnation, request.number))  # the asking node has the whole answer
            return
        if request.offset:
            self._answer_rest(header, request, reply)
            return
        handler = self._handlers.get(request.method)
        if handler is None:
            self._fail(reply, f"no such call: {request.method}")
        elif len(self._tasks) >= MAX_CALLS:
            self._context.refusals.add("calls_full", header.node, "-")
            self._fail(reply, "too many calls at a time")
        else:
            self._tasks.run(self._answer(handler, header, request, reply))

    async def _answer(self, handler: Handler, header: Header, request: Request, reply: str) -> None:
        try:
            answer = await handler(header.node, request.argument)
        except (CallFailed, NodeUnreachable) as error:
            self._fail(reply, str(error) or type(error).__name__)
            return
        except Exception as error:  # an error in one call is reported to the asking node, and ends nothing here
            logger.exception("call_failed method=%s node=%s", request.method, header.node)
            self._fail(reply, f"{type(error).__name__}: {error}")
            return
        if len(answer) > MAX_ANSWER:
            self._fail(reply, f"an answer of {len(answer)} bytes is too long")
            return
        most = self._part_size
        if len(answer) > most:
            if self.kept_bytes + len(answer) > MAX_KEPT:
                self._context.refusals.add(ANSWERS_FULL, header.node, "-")
                self._fail(reply, "too many bytes of other answers have not been fetched yet")
                return
            self._keep((header.node, header.incarnation, request.number), answer)
        self._reply(reply, Reply("", len(answer), answer[:most]))

    def _answer_rest(self, header: Header, request: Request, reply: str) -> None:
        key = (header.node, header.incarnation, request.number)
        kept = self._kept.get(key)
        if kept is None:
            self._fail(reply, "the answer is no longer available")
            return
        answer, _ = kept
        self._keep(key, answer)
        end = request.offset + self._part_size
        self._reply(reply, Reply("", len(answer), answer[request.offset : end]))

    def _keep(self, key: tuple[str, int, int], answer: bytes) -> None:
        """Store the answer until the asking node reports that it has received all of it, or has not asked for a part
        for some time. Sending the last part is not enough, because it may be lost and requested again."""
        self._drop(key)
        timer = asyncio.get_running_loop().call_later(self._context.settings.call_timeout, self._drop, key)
        self._kept[key] = (answer, timer)
        self.kept_bytes += len(answer)

    def _drop(self, key: tuple[str, int, int]) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            kept[1].cancel()
            self.kept_bytes -= len(kept[0])

    @property
    def _part_size(self) -> int:
        return max(self._nats.max_payload // 2 - OVERHEAD, OVERHEAD)

    def _fail(self, reply: str, failure: str) -> None:
        self._reply(reply, Reply(failure, 0, b""))

    def _reply(self, subject: str, reply: Reply) -> None:
        self._nats.publish(subject, self._context.wire.write(reply))
