"""SinkAction: puts each row into the buffer of its resource. The action of a sink only defines how a row is encoded."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from ..event import Event
from ..params import RESOURCE, Param, ParamError, Text, read_retry_for, retry_for_param
from ..resources.sink import Sink, SinkRequest, SinkResource
from .action import Action, ActionContext, ActionFailed, Row
from .message_facts import order_key

_MAX_BATCH: Final = 10_000
_MAX_BATCH_TIME: Final = 60_000
"""In milliseconds."""

SinkT = TypeVar("SinkT", bound=Sink)
_Taken = TypeVar("_Taken", bound=Sink, contravariant=True)


class RequestMaker(Protocol[_Taken]):
    """The interface for an action of a sink. Its constructor receives the ActionContext and raises ParamError."""

    def request(self, row: Row, event: Event, sink: _Taken) -> SinkRequest:
        """Return the row in the form for ``sink``. On the publish path: never waits. Raises ActionFailed or
        ValueError."""
        ...


class Batch(NamedTuple):
    """How many rows may share a ``write``, and how many seconds a row waits for others."""

    size: int
    linger: float


class SinkAction(Generic[SinkT]):
    """A running action."""

    def __init__(
        self, context: ActionContext, sink_type: type[SinkT], maker: RequestMaker[SinkT], batch: Batch | None
    ) -> None:
        """``batch`` None: each request specifies it. Raises ParamError."""
        self._id = context.id
        self._find_resource = context.resource
        self._buffers = context.node.buffers
        self._resource_id: str = context.params[RESOURCE]
        self._sink_type = sink_type
        self._maker = maker
        self._batch = batch
        self._retry_for = read_retry_for(context.params)
        self._report = context.report
        self._buffers.reports[context.id] = context.report

    def run(self, row: Row, event: Event) -> bool:
        resource = self._find_resource(self._resource_id)
        if not isinstance(resource, SinkResource) or not isinstance(resource.sink, self._sink_type):
            raise ActionFailed(f"the resource {self._resource_id} is not running")
        try:
            request = self._maker.request(row, event, resource.sink)
        except ValueError as error:
            raise ActionFailed(str(error)) from None
        if self._batch is not None:
            size, linger = self._batch
            request = request._replace(group=request.group or self._id, max_batch=size, linger=linger)
        resource.put(self._id, request, row, self._retry_for, order_key(event))
        return False

    def close(self) -> None:
        self._buffers.remove_report(self._id, self._report)


def to_sink(
    sink_type: type[SinkT], create: Callable[[ActionContext], RequestMaker[SinkT]], batches: bool = False
) -> Callable[[ActionContext], Action]:
    """Return ``create`` of an ActionType whose rows are sent to sinks of this type. ``batches``: it has
    ``batch_params``."""

    def action(context: ActionContext) -> Action:
        maker = create(context)
        return SinkAction(context, sink_type, maker, _read_batch(context.params) if batches else None)

    return action


def batch_params(order: int) -> tuple[Param, ...]:
    """Return ``enable_batch``, ``batch_size`` and ``batch_time``, as in EMQX; numbered from ``order``."""
    return (
        Param("enable_batch", order, "boolean", Text("Enable Batch", "启用批量"),
              Text("Write several rows at once", "将多条数据合并写入"), default=True),
        Param("batch_size", order + 1, "number", Text("Batch Size", "批量大小"),
              Text("How many rows may be written at once", "一次最多写入的数据条数"),
              default=100, range=(1, _MAX_BATCH)),
        Param("batch_time", order + 2, "number", Text("Batch Time", "批量等待时间"),
              Text("How long a row waits for others, in milliseconds", "一条数据等待其他数据的最长时间（毫秒）"),
              default=10, range=(0, _MAX_BATCH_TIME)),
    )  # fmt: skip


def workers_param(order: int) -> Param:
    """Return ``batch_pool_size``, as in EMQX."""
    return Param("batch_pool_size", order, "number", Text("Batch Workers", "批处理进程数"),
                 Text("How many connections of the resource the rows of this action use if they are written in batches",
                      "批量写入时该动作使用的连接数"), default=4, range=(1, 256))  # fmt: skip


class WorkerKeys:
    """The keys of an action with ``batch_params`` and ``workers_param``: the rows of one client have the same key.

    There are few keys, so that rows of different clients share a batch."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        """Raises ParamError."""
        workers = params["batch_pool_size"]
        if not isinstance(workers, int):
            raise ParamError("batch_pool_size", "expected a whole number")
        self._keys = [str(number) for number in range(workers)] if params["enable_batch"] else []

    def key(self, event: Event) -> str:
        key = order_key(event)
        if not self._keys:
            return key
        return self._keys[zlib.crc32(key.encode("utf-8", "replace")) % len(self._keys)]


def insert_mode_params(order: int) -> tuple[Param, ...]:
    """Return ``insert_mode`` and ``sync_timeout``, as in EMQX; numbered from ``order``."""
    return (
        Param("insert_mode", order, "string", Text("Insert Mode", "写入模式"),
              Text("async: a row waits for an unavailable server; sync: it fails after sync_timeout, and the fallbacks "
                   "run", "async：服务器不可用时数据等待；sync：超过同步超时即失败并执行备选动作"),
              default="async", enum=["async", "sync"]),
        Param("sync_timeout", order + 1, "number", Text("Sync Timeout", "同步超时"),
              Text("Milliseconds, for the insert mode sync; retry_for replaces it", "同步写入的超时（毫秒）"),
              default=5000, range=(1, 86_400_000)),
    )  # fmt: skip


def insert_params(order: int) -> tuple[Param, ...]:
    """Return ``insert_mode``, ``sync_timeout``, ``sql_insert_null`` and ``retry_for``, the first three as in EMQX;
    numbered from ``order``."""
    return (
        *insert_mode_params(order),
        Param("sql_insert_null", order + 2, "boolean", Text("Insert NULL", "插入 NULL"),
              Text("Write NULL for a value that is undefined; false: the text undefined",
                   "变量未定义时写入 NULL；false 则写入文本 undefined"), default=False),
        retry_for_param(order + 3),
    )  # fmt: skip


def with_insert_mode(context: ActionContext) -> ActionContext:
    """Return the context with the ``retry_for`` that ``insert_mode`` and ``sync_timeout`` give. Raises ParamError."""
    params = context.params
    if not isinstance(params["sync_timeout"], int):
        raise ParamError("sync_timeout", "expected a whole number")
    if params["insert_mode"] != "sync" or params.get("retry_for"):
        return context
    return replace(context, params={**params, "retry_for": params["sync_timeout"] / 1000})


def _read_batch(params: Mapping[str, Any]) -> Batch:
    size = params["batch_size"] if params["enable_batch"] else 1
    if not isinstance(size, int):
        raise ParamError("batch_size", "expected a whole number")
    return Batch(size, params["batch_time"] / 1000)
