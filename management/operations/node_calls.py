"""Node calls: an operation that another node executes, with the function that executes it on this one.

A method that other nodes may call is passed to ``serve`` once. Its name and its annotated arguments are sent as
MessagePack, so nodes of two versions must have them in common: a new argument has a default, and an unknown one is
ignored.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from functools import cache
from types import MethodType
from typing import Any, Final, Generic, NamedTuple, ParamSpec, TypeVar, get_type_hints

import msgspec

from taipan.broker.core.cluster import STOPPED, SUSPECT, CallFailed, Member, NodeUnreachable
from taipan.broker.server import Server

from .refusal import RPC_ERROR, SUCCESS, Refusal, not_found

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

_LARGEST: Final = 2**63 - 1
"""The largest whole number on the wire. A larger one is sent as this one, which is above every limit and count."""

SUSPECT_TIMEOUT: Final = 0.5
"""Seconds that a Suspect node has to answer if an answer without it is valid, too."""
_TRY_AGAIN: Final = 1.0

_encode_exactly: Final = msgspec.msgpack.Encoder(enc_hook=str).encode


class NodeDoesNotAnswer(Refusal):
    """A node of the cluster that does not answer."""

    def __init__(self, node: str, why: str) -> None:
        super().__init__(RPC_ERROR, f"node {node} {why}")
        self.node = node


def stopped(node: str) -> NodeDoesNotAnswer:
    """Return why a Stopped node is not asked."""
    return NodeDoesNotAnswer(node, "is stopped")


class Gathered(NamedTuple, Generic[R]):
    """The answers of all running nodes by name, and the names of the nodes that did not answer."""

    found: list[tuple[str, R]]
    missing: list[str]


class _Answer(msgspec.Struct, array_like=True, frozen=True):
    """The answer on the wire: a refusal, or ``data``."""

    code: int
    message: str
    data: msgspec.Raw = msgspec.Raw(b"\xc0")


class _Schema(NamedTuple):
    """Decoders for the arguments and the answer of a method."""

    signature: inspect.Signature
    arguments: msgspec.msgpack.Decoder[Any]
    answer: msgspec.msgpack.Decoder[Any]


@cache
def _schema_of(method: Callable[..., Any]) -> _Schema:
    """Cached for all nodes of a process: computing it is half of the work of creating a node's calls."""
    signature = inspect.signature(method)
    _, *parameters = signature.parameters.values()
    types = get_type_hints(method)
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for each in parameters:
        field = (each.name, types[each.name])
        fields.append(field if each.default is inspect.Parameter.empty else (*field, each.default))
    return _Schema(
        signature.replace(parameters=parameters),
        msgspec.msgpack.Decoder(msgspec.defstruct("Arguments", fields, kw_only=True)),
        msgspec.msgpack.Decoder(types["return"]),
    )


class _Operation:
    """A method as other nodes call it: its name, and its arguments and answer on the wire."""

    __slots__ = ("function", "name", "schema")

    def __init__(self, function: MethodType) -> None:
        self.function = function
        self.name = f"operations.{function.__qualname__}"
        self.schema = _schema_of(function.__func__)

    def encode(self, args: tuple[object, ...], kwargs: dict[str, Any]) -> bytes:
        return _encode(self.schema.signature.bind(*args, **kwargs).arguments)

    async def run(self, argument: bytes) -> Any:
        given = self.schema.arguments.decode(argument)
        done = self.function(*(getattr(given, name) for name in given.__struct_fields__))
        return await _settled(done)


class _Trial:
    """A question to a Suspect node. ``answered``: whether the node has answered; other questions wait for that."""

    __slots__ = ("answered", "asked_at")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.asked_at = loop.time()
        self.answered: asyncio.Future[bool] = loop.create_future()


class NodeCalls:
    """The known nodes, and calls to them. On a node without a cluster, every call is local."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._operations: dict[str, _Operation] = {}
        # The last question to each node that is, or was, Suspect.
        self._trials: dict[str, _Trial] = {}
        self.name = server.settings.node.name

    @property
    def clustered(self) -> bool:
        return self._server.cluster.clustered

    def members(self) -> list[Member]:
        """Return all known nodes by name, including stopped ones."""
        return self._server.cluster.members()

    def running(self) -> list[str]:
        """Return the names of the nodes that are asked, in order, including this node."""
        if not self.clustered:
            return [self.name]
        return sorted({self.name, *(each.name for each in self.members() if each.status != STOPPED)})

    def check(self, node: str) -> None:
        """Check that a node with this name exists. Raises Refusal."""
        if node != self.name and all(each.name != node for each in self.members()):
            raise not_found("node", node)

    # --------------------------------------------------------------- answering

    def serve(self, *functions: Callable[..., object]) -> None:
        """Let other nodes call these operations from now on."""
        for function in functions:
            assert isinstance(function, MethodType)
            operation = _Operation(function)
            self._operations[function.__qualname__] = operation
            self._server.cluster.serve(operation.name, self._handler(operation))

    def _handler(self, operation: _Operation) -> Callable[[str, bytes], Awaitable[bytes]]:
        async def handle(asking: str, argument: bytes) -> bytes:
            if all(each.name != asking for each in self.members()):
                logger.warning("node_call_refused operation=%s node=%s reason=unknown_node", operation.name, asking)
                answer = _Answer(RPC_ERROR, f"node {asking} is not known")
            else:
                answer = await self._answer(operation, argument)
            return _encode(answer)

        return handle

    async def _answer(self, operation: _Operation, argument: bytes) -> _Answer:
        try:
            return _Answer(SUCCESS, "", msgspec.Raw(_encode(await operation.run(argument))))
        except Refusal as refusal:
            return _Answer(refusal.code, refusal.message)
        except msgspec.MsgspecError as error:
            return _Answer(RPC_ERROR, f"the argument cannot be read: {error}")
        except Exception:
            # A bug: the log has the traceback, the answer does not.
            logger.exception("node_call_error operation=%s", operation.name)
            return _Answer(RPC_ERROR, "internal error; see the log of that node")

    # ------------------------------------------------------------------ asking

    async def on(self, node: str, function: Callable[P, R | Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the result of ``function`` on that node. Raises Refusal: its own, or NodeDoesNotAnswer."""
        return await self._on(node, True, function, *args, **kwargs)

    async def _on(
        self, node: str, patient: bool, function: Callable[P, R | Awaitable[R]], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """``patient``: whether a Suspect node has as much time to answer as any other."""
        if node == self.name:
            done = function(*args, **kwargs)
            return await _settled(done)
        self.check(node)
        operation = self._operations[function.__qualname__]
        status = next((each.status for each in self.members() if each.name == node), "")
        if status == STOPPED:
            raise stopped(node)
        argument = operation.encode(args, kwargs)
        try:
            if status == SUSPECT and not patient:
                octets = await self._ask_suspect(node, operation.name, argument)
            else:
                octets = await self._server.cluster.call(node, operation.name, argument)
            answer = msgspec.msgpack.decode(octets, type=_Answer)
            if answer.code != SUCCESS:
                raise Refusal(answer.code, answer.message)
            decoded: R = operation.schema.answer.decode(answer.data)
            return decoded
        except NodeUnreachable:
            raise NodeDoesNotAnswer(node, "does not answer") from None
        except (CallFailed, msgspec.MsgspecError) as error:
            raise NodeDoesNotAnswer(node, f"cannot answer: {error}") from None

    async def _ask_suspect(self, node: str, method: str, argument: bytes) -> bytes:
        """Ask a node that may be unreachable: while it does not answer, at most once a second and for half a second."""
        loop = asyncio.get_running_loop()
        trial = self._trials.get(node)
        if trial is not None and loop.time() - trial.asked_at < _TRY_AGAIN:
            if not await asyncio.shield(trial.answered):
                raise NodeUnreachable(f"{node} did not answer a moment ago")
            return await self._server.cluster.call(node, method, argument, SUSPECT_TIMEOUT)
        trial = self._trials[node] = _Trial(loop)
        answered = False
        try:
            octets = await self._server.cluster.call(node, method, argument, SUSPECT_TIMEOUT)
            answered = True
            return octets
        except CallFailed:
            answered = True
            raise
        finally:
            trial.answered.set_result(answered)

    async def everywhere(
        self, function: Callable[P, R | Awaitable[R]], *args: P.args, **kwargs: P.kwargs
    ) -> Gathered[R]:
        """Return the results of ``function`` on all running nodes, which are asked at the same time. Suspect nodes have
        half a second to answer. Raises the first Refusal."""
        return await self._everywhere(False, function, *args, **kwargs)

    async def _everywhere(
        self, patient: bool, function: Callable[P, R | Awaitable[R]], *args: P.args, **kwargs: P.kwargs
    ) -> Gathered[R]:
        names = self.running()
        asked = (self._on(name, patient, function, *args, **kwargs) for name in names)
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        found: list[tuple[str, R]] = []
        missing: list[str] = []
        for name, outcome in zip(names, outcomes, strict=True):
            if isinstance(outcome, NodeDoesNotAnswer):
                missing.append(name)
            elif isinstance(outcome, Refusal) and name != self.name:
                raise Refusal(outcome.code, f"node {name}: {outcome.message}")
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                found.append((name, outcome))
        return Gathered(found, missing)

    async def order_all(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Run an operation on all running nodes. Raises the first Refusal."""
        gathered: Gathered[object] = await self._everywhere(True, function, *args, **kwargs)
        if gathered.missing:
            raise NodeDoesNotAnswer(gathered.missing[0], "does not answer; on the others it is done")

    def may_lack(self, missing: list[str]) -> list[str]:
        """Return the missing nodes. Raises Refusal if an answer without a node is not allowed (setting
        ``cluster.strict_fanout``)."""
        settings = self._server.settings.cluster
        if missing and settings is not None and settings.strict_fanout:
            raise NodeDoesNotAnswer(missing[0], "does not answer (setting cluster.strict_fanout)")
        return missing


def _encode(what: object) -> bytes:
    try:
        return _encode_exactly(what)
    except OverflowError:
        return _encode_exactly(_within_64_bits(msgspec.to_builtins(what, builtin_types=(bytes,), enc_hook=str)))


def _within_64_bits(what: Any) -> Any:
    if isinstance(what, int):
        return max(-_LARGEST, min(what, _LARGEST))
    if isinstance(what, dict):
        return {key: _within_64_bits(each) for key, each in what.items()}
    if isinstance(what, (list, tuple)):
        return [_within_64_bits(each) for each in what]
    return what


async def _settled(done: R | Awaitable[R]) -> R:
    return await done if isinstance(done, Awaitable) else done
