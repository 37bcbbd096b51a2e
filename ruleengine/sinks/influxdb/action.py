"""The action ``data_to_influxdb``: one point in line protocol for each row."""

import math
import re
from typing import Any, Final

from ...actions.action import ActionContext, ActionType, Row
from ...actions.sink_action import WorkerKeys, batch_params, to_sink, workers_param
from ...actions.template import Template
from ...event import Event
from ...functions.budget import Budget
from ...functions.undefined import UNDEFINED
from ...functions.values import encode_json, float_text, integer_text
from ...params import Param, ParamError, Text, resource_param, retry_for_param
from ...resources.sink import SinkRequest
from .resource import PRECISIONS, InfluxDb

_SUFFIXES: Final = {"float": "", "signed": "i", "unsigned": "u"}
_RANGES: Final = {"i": (-(2**63), 2**63), "u": (0, 2**64)}
_INTEGER: Final = re.compile(r"-?[0-9]{1,20}", re.ASCII)
_TYPED: Final = re.compile(r"(\$\{[^}]*\})([iu])")
_TYPED_NUMBER: Final = re.compile(r"-?[0-9]{1,20}[iu]", re.ASCII)
_NUMBER: Final = re.compile(r"-?[0-9]{1,300}(\.[0-9]{1,300})?", re.ASCII)
# A backslash in front of these characters escapes them, and nothing escapes a backslash.
_ESCAPING: Final = re.compile(r"\\(?=[,= ]|\Z)")
_IN_MEASUREMENT: Final = str.maketrans({",": "\\,", " ": "\\ "})
_IN_TAG: Final = str.maketrans({",": "\\,", "=": "\\=", " ": "\\ "})
_IN_STRING: Final = str.maketrans({"\\": "\\\\", '"': '\\"'})


class _Field:
    """One field: a name that is escaped, and how the value is written."""

    def __init__(self, name: str, value: object, suffix: str) -> None:
        """Raises ParamError."""
        self._shown = name
        self.name = _key("fields", name)
        self.constant: str | None = None
        self._suffix = suffix
        self._forced = ""
        text = _template_text("fields", name, value)
        if not isinstance(value, str):
            self.constant = self._written(value)
        elif match := _TYPED.fullmatch(text):
            text, self._forced = match[1], match[2]
        elif _TYPED_NUMBER.fullmatch(text):
            self.constant = text
        elif _NUMBER.fullmatch(text):
            self.constant = self._written(float(text) if "." in text else int(text))
        self._template = Template(text)
        if not text:
            raise ParamError("fields", f"{name} has no value")

    def written(self, row: Row) -> str | None:
        """Return the value in line protocol; None: without a value. Raises ValueError."""
        return self.constant if self.constant is not None else self._written(self._template.value(row))

    def _written(self, value: Any) -> str | None:
        kind = type(value)
        if value is None or value is UNDEFINED:
            return None
        if self._forced:
            return self._integer(_whole(value), self._forced)
        if kind is str:
            return f'"{value.translate(_IN_STRING)}"'
        if kind is bool:
            return "true" if value else "false"
        if kind is int:
            return self._integer(value, self._suffix)
        if kind is float:
            return float_text(value)
        if kind is bytes:
            raise ValueError(f"fields: {self._shown} is not UTF-8")
        return f'"{encode_json(value, Budget()).translate(_IN_STRING)}"'

    def _integer(self, value: int | None, suffix: str) -> str:
        if value is None:
            raise ValueError(f"fields: {self._shown} is not an integer")
        if suffix:
            least, end = _RANGES[suffix]
            if not least <= value < end:
                raise ValueError(f"fields: {self._shown} is outside of the range of its type")
        elif value.bit_length() > 1000:
            raise ValueError(f"fields: {self._shown} is too large")
        return integer_text(value) + suffix


class DataToInfluxDb:
    """Creates the point."""

    def __init__(self, context: ActionContext) -> None:
        """Raises ParamError."""
        params = context.params
        self._clock = context.node.clock
        self._keys = WorkerKeys(params)
        self._measurement = Template(params["measurement"])
        if not params["measurement"]:
            raise ParamError("measurement", "expected a name")
        self._timestamp = Template(params["timestamp"])
        self._tags = [
            (_key("tags", name), name, Template(text))
            for name, value in params["tags"].items()
            if (text := _template_text("tags", name, value))
        ]
        suffix = _SUFFIXES[params["int_suffix"]]
        self._fields = [_Field(name, value, suffix) for name, value in params["fields"].items()]
        if not self._fields:
            raise ParamError("fields", "expected at least one field")

    def request(self, row: Row, event: Event, sink: InfluxDb) -> SinkRequest:
        parts = [_text("measurement", self._measurement.render(row)).translate(_IN_MEASUREMENT)]
        if not parts[0] or parts[0].startswith("#"):
            raise ValueError("measurement: a name must not be empty or begin with #")
        for key, name, template in self._tags:
            value = template.value(row)
            if value is None or value is UNDEFINED:
                continue
            text = _text(f"tags: {name}", template.render(row))
            if text:
                parts.append(f"{key}={text.translate(_IN_TAG)}")
        fields = [f"{each.name}={written}" for each in self._fields if (written := each.written(row)) is not None]
        if not fields:
            raise ValueError("fields: none of them has a value")
        precision = sink.precision
        line = f"{','.join(parts)} {','.join(fields)} {self._time(row, precision)}"
        try:
            body = line.encode()
        except UnicodeEncodeError:
            raise ValueError("a value is not UTF-8") from None
        return SinkRequest(body, self._keys.key(event), precision)

    def _time(self, row: Row, precision: str) -> int:
        """Return the timestamp: that of the row, or now."""
        value = self._timestamp.value(row) if self._timestamp.text else None
        if value is None or value is UNDEFINED or value == "":
            return int(self._clock.wall() * PRECISIONS[precision])
        time = _whole(value)
        if time is None or not -(2**63) + 2 <= time < 2**63 - 1:
            raise ValueError("timestamp: expected an integer")
        return time


def _whole(value: object) -> int | None:
    """Return the integer that an integer, a float or a text represents; None: it does not represent one."""
    if type(value) is int:
        return value
    if type(value) is float and math.isfinite(value) and value == int(value):
        return int(value)
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        return int(value)
    return None


def _text(what: str, text: str | bytes) -> str:
    """Return a measurement, or a tag's name or value. Raises ValueError for one that line protocol cannot express."""
    if isinstance(text, bytes):
        raise ValueError(f"{what} is not UTF-8")
    if "\n" in text or "\r" in text or "\0" in text:
        raise ValueError(f"{what} contains a line break")
    if _ESCAPING.search(text):
        raise ValueError(f"{what} has a backslash at its end or before a comma, an equals sign or a space")
    return text


def _key(param: str, name: str) -> str:
    try:
        text = _text(f"the name {name!r}", name)
    except ValueError as error:
        raise ParamError(param, str(error)) from None
    if not text or text == "time":
        raise ParamError(param, "a name is empty or 'time', which InfluxDB reserves")
    return text.translate(_IN_TAG)


def _template_text(param: str, name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise ParamError(param, f"{name}: expected a string, a number, true or false")


TYPE: Final = ActionType(
    "data_to_influxdb",
    Text("Data to InfluxDB", "保存数据到 InfluxDB"),
    Text("Store each row as a point", "将每条数据保存为数据点"),
    to_sink(InfluxDb, DataToInfluxDb, batches=True),
    (
        resource_param("backend_influxdb_http"),
        Param("measurement", 1, "string", Text("Measurement", "Measurement"),
              Text("The name of the measurement; ${...} is replaced", "Measurement 名称，支持 ${...}"), required=True),
        Param("tags", 2, "object", Text("Tags", "标签"),
              Text("Names and templates of the tags; a tag without a value is not written",
                   "标签名与取值模板；没有值的标签不写入"), default={}, schema={}),
        Param("fields", 3, "object", Text("Fields", "字段"),
              Text("Names and templates of the fields: ${x} keeps the type of x, ${x}i and ${x}u are integers; a field "
                   "without a value is not written",
                   "字段名与取值模板：${x} 保留 x 的类型，${x}i 与 ${x}u 为整数；没有值的字段不写入"),
              required=True, schema={}),
        Param("timestamp", 4, "string", Text("Timestamp", "时间戳"),
              Text("Template of the timestamp, in the resource's precision; empty: the current time",
                   "时间戳模板，单位为资源的时间精度；留空则为当前时间"), default=""),
        Param("int_suffix", 5, "string", Text("Integers", "整数类型"),
              Text("How integers without a suffix are stored", "没有后缀的整数的存储类型"),
              default="float", enum=list(_SUFFIXES)),
        *batch_params(6),
        workers_param(9),
        retry_for_param(10),
    ),
    resource_types=("backend_influxdb_http", "backend_influxdb_http_v2"),
    category="data_persist",
    order=20,
)  # fmt: skip
ACTIONS: Final = (TYPE,)
