"""The action ``data_to_opentsdb``: one data point for each row, stored by a ``backend_opentsdb`` resource."""

import json
import math
import re
from typing import Final

from ...actions.action import ActionContext, ActionFailed, ActionType, Row
from ...actions.sink_action import to_sink
from ...event import Event
from ...functions.undefined import UNDEFINED
from ...functions.values import float_text
from ...params import Param, ParamError, Text, resource_param, retry_for_param
from ...resources.sink import SinkRequest
from .resource import DataPoint, OpenTsdb, PutOptions

MAX_TAGS: Final = 8
"""Default limit of an OpenTSDB server."""

# In OpenTSDB: letters of any script, digits, and these; `\w` includes the underscore, letters and digits.
_NOT_IN_NAMES: Final = re.compile(r"[^\w\-./]")
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,400}(\.[0-9]{1,400})?([eE][+-]?[0-9]{1,3})?", re.ASCII)
_INTEGER: Final = re.compile(r"[0-9]{1,18}", re.ASCII)


class DataToOpenTsdb:
    """Creates the data point."""

    def __init__(self, context: ActionContext) -> None:
        """Raises ParamError."""
        params = context.params
        self._id = context.id
        self._clock = context.node.clock
        for name in ("max_batch_size", "sync_timeout"):
            if not isinstance(params[name], int):
                raise ParamError(name, "expected a whole number")
        self._options = PutOptions(params["details"], params["summary"], params["sync"], params["sync_timeout"])
        self._max_batch: int = 1 if params["sync"] else params["max_batch_size"]

    def request(self, row: Row, event: Event, sink: OpenTsdb) -> SinkRequest:
        return sink.request_of(self._id, data_point(row, self._clock.wall()), self._options, self._max_batch)


def data_point(row: Row, now: float) -> DataPoint:
    """Return the data point for a row; ``now`` in Unix seconds. Raises ActionFailed."""
    metric = row.get("metric", UNDEFINED)
    if not isinstance(metric, str) or not metric:
        raise ActionFailed("not a data point: metric is not a string")
    return DataPoint(sanitise(metric), _timestamp(row.get("timestamp"), now), _value(row.get("value")), _tags(row))


def sanitise(name: str) -> str:
    """Return a metric, or a tag's name or value, with ``_`` for every character that OpenTSDB refuses."""
    return _NOT_IN_NAMES.sub("_", name)


def _value(value: object) -> int | float:
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = int(value) if value.lstrip("+-").isdigit() else float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ActionFailed("not a data point: value is not a number")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ActionFailed("not a data point: value has more than 64 bits")
    return value


def _timestamp(value: object, now: float) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63:
        return value
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        return int(value)
    return int(now * 1000)


def _tags(row: Row) -> dict[str, str]:
    tags = row.get("tags")
    if isinstance(tags, str):  # an object given as JSON text
        try:
            tags = json.loads(tags)
        except (ValueError, RecursionError):
            tags = None
    if not isinstance(tags, dict) or not tags:
        raise ActionFailed("not a data point: tags is not an object with at least one tag")
    if len(tags) > MAX_TAGS:
        raise ActionFailed(f"not a data point: {len(tags)} tags, OpenTSDB accepts {MAX_TAGS}")
    made = {sanitise(str(name)): sanitise(_tag(name, value)) for name, value in tags.items()}
    if len(made) < len(tags) or "" in made:
        raise ActionFailed("not a data point: two tags have the same name, or a tag has no name")
    return made


def _tag(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return float_text(value)
    if isinstance(value, int) or (isinstance(value, str) and value):
        return str(value)
    raise ActionFailed(f"not a data point: the tag {name} is neither a string nor a number")


TYPE: Final = ActionType(
    "data_to_opentsdb",
    Text("Data to OpenTSDB", "保存数据到 OpenTSDB"),
    Text("Store each row as a data point: metric, tags, value and, if given, timestamp",
         "将每条数据保存为数据点：metric、tags、value，可选 timestamp"),
    to_sink(OpenTsdb, DataToOpenTsdb),
    (
        resource_param("backend_opentsdb"),
        Param("details", 1, "boolean", Text("Details", "详细信息"),
              Text("Ask the server to report the points that it did not store, with the reason",
                   "让服务器返回未能存储的数据点及原因"), default=False),
        Param("summary", 2, "boolean", Text("Summary", "摘要信息"),
              Text("Ask the server to count the points that it stored and did not store",
                   "让服务器返回存储成功与失败的数据点数量"), default=True),
        Param("max_batch_size", 3, "number", Text("Max Batch Size", "最大批处理数"),
              Text("How many points may share a request", "一个请求最多合并的数据点数"), default=20, range=(1, 10_000)),
        Param("sync", 4, "boolean", Text("Synchronous Call", "同步调用"),
              Text("Ask the server to answer after the points are written; one point per request",
                   "让服务器在写入完成后再响应，此时每个请求只含一个数据点"), default=False),
        Param("sync_timeout", 5, "number", Text("Synchronous Call Timeout", "同步调用超时"),
              Text("The time limit for that, in milliseconds; 0: no limit",
                   "同步调用的最长时间（毫秒），0 表示不限"), default=0, range=(0, 86_400_000)),
        retry_for_param(6),
    ),
    resource_types=("backend_opentsdb",),
    category="data_persist",
    order=6,
)  # fmt: skip
ACTIONS: Final = (TYPE,)
