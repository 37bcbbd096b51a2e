"""Parameters of actions and resources: declared once as data, shown by the API, and checked when something is created.

The definitions have the keys of EMQX 4.x (rule-engine API: ``order``, ``type``, ``required``, ``default``, ``enum``,
``format``, ``range``, ``schema``, ``items``, ``input``, ``title``, ``description``).
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import UNSET

from .records import ParamDefinition
from .records import Text as Text

_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "string": (str,),
    "password": (str,),
    "file": (str,),
    "binary_file": (str,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
}
_NAMES: Final = {
    "string": "a string",
    "password": "a string",
    "file": "the name of a file",
    "binary_file": "the name of a file",
    "number": "a number",
    "boolean": "true or false",
    "object": "an object",
    "array": "a list",
}
RESOURCE: Final = "$resource"
"""The parameter of an action that names its resource."""
_SHOWN: Final = 60
MAX_FILE: Final = 262_144
"""Maximum length of a file given with its text, in characters."""
_DURATION: Final = re.compile(r"([0-9]{1,9})(ms|s|m|h)")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_MAX_RETRY_FOR: Final = 31_536_000.0
"""In seconds."""
_TRUTH: Final = {"true": True, "false": False}


class ParamError(ValueError):
    """An invalid parameter. ``key`` is its name; ``missing``: it is required and was not given."""

    def __init__(self, key: str, text: str, missing: bool = False) -> None:
        super().__init__(f"{key}: {text}" if not missing else f"{key} is missing")
        self.key = key
        self.missing = missing


class Param:
    """One parameter. ``schema``, ``items`` and ``input`` are for forms."""

    __slots__ = (
        "default",
        "description",
        "enum",
        "format",
        "input",
        "insist",
        "items",
        "name",
        "order",
        "parts",
        "range",
        "required",
        "schema",
        "title",
        "type",
    )

    def __init__(
        self,
        name: str,
        order: int,
        type: str | list[str],
        title: Text,
        description: Text,
        required: bool = False,
        default: Any = None,
        enum: list[Any] | None = None,
        format: str | None = None,
        range: tuple[float, float] | None = None,
        insist: bool = False,
        schema: dict[str, object] | None = None,
        items: dict[str, object] | None = None,
        input: str | None = None,
        parts: bool = False,
    ) -> None:
        """``format``: ``url`` or a regular expression that must match the whole text. ``insist``: it is required
        although it has a default, which only forms show. ``parts``: parts of the value may be secrets, such as a
        password in a URL or an authorization header; answers mask them. A value of the type ``password`` is a secret as
        a whole. All other values are shown unchanged."""
        self.name = name
        self.order = order
        self.type = type
        self.title = title
        self.description = description
        self.required = required
        self.default = default
        self.enum = enum
        self.format = format
        self.range = range
        self.insist = insist
        self.schema = schema
        self.items = items
        self.input = input
        self.parts = parts

    def record(self) -> ParamDefinition:
        return ParamDefinition(
            order=self.order,
            type=self.type,
            title=self.title,
            description=self.description,
            required=self.required or UNSET,
            default=UNSET if self.default is None else self.default,
            enum=UNSET if self.enum is None else self.enum,
            format=UNSET if self.format is None else self.format,
            range=UNSET if self.range is None else self.range,
            schema=UNSET if self.schema is None else self.schema,
            items=UNSET if self.items is None else self.items,
            input=UNSET if self.input is None else self.input,
        )

    def check(self, value: Any) -> object:
        """Return ``value`` in the parameter's form. Raises ParamError."""
        types = [self.type] if isinstance(self.type, str) else self.type
        if value == [] and "object" in types and "array" not in types:
            return {}  # PHP encodes an object without members in this way
        if "file" in types and isinstance(value, dict | None):
            return _file(self.name, value)
        if isinstance(value, str) and "boolean" in types and value in _TRUTH:
            value = _TRUTH[value]
        if self.enum is not None:
            if isinstance(value, int) and str(value) in self.enum:
                value = str(value)  # 1 for "1"
            # True == 1 in Python, not here.
            if not any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in self.enum):
                raise ParamError(self.name, f"expected one of {one_of(self.enum)}")
            return value
        if not any(_is_a(value, each) for each in types):
            raise ParamError(self.name, f"expected {' or '.join(_NAMES[each] for each in types)}, got {_given(value)}")
        if isinstance(value, str) and self.format == "url":
            _check_url(self.name, value)
        elif isinstance(value, str) and self.format is not None and not re.fullmatch(self.format, value):
            raise ParamError(self.name, f"expected the form {self.format}")
        if self.range is not None and not self.range[0] <= value <= self.range[1]:
            raise ParamError(self.name, f"expected {number(self.range[0])} to {number(self.range[1])}")
        return value

    def gives(self, value: object) -> bool:
        """Return whether ``value`` is given: a form sends an empty text if no choice was made."""
        return value != "" or self.enum is None or "" in self.enum


def _file(name: str, value: dict[str, Any] | None) -> str | dict[str, str]:
    """Read a file as EMQX's dashboard sends it, ``{"filename", "file"}``, including its text; an empty one means
    none."""
    given = value or {}
    filename, text = given.get("filename") or "", given.get("file") or ""
    if not given.keys() <= {"filename", "file"} or not isinstance(filename, str) or not isinstance(text, str):
        raise ParamError(name, "expected the name of a file, or an object with filename and file, its text")
    if len(text) > MAX_FILE:
        raise ParamError(name, f"the file has more than {MAX_FILE} characters")
    return {"filename": filename[:_SHOWN], "file": text} if text else ""


def one_of(values: Iterable[object]) -> str:
    """Return the allowed values in JSON."""
    return ", ".join(json.dumps(each, ensure_ascii=False) for each in values)


def number(value: float) -> str:
    """Return a limit in digits."""
    return str(int(value)) if value == int(value) else str(value)


def _given(value: object) -> str:
    """Return an invalid value in JSON, short enough for a line."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    return json.dumps(value)[:_SHOWN]


def check_params(given: Mapping[str, object], params: tuple[Param, ...]) -> dict[str, object]:
    """Return the checked parameters with defaults; undeclared keys are kept. Raises ParamError."""
    checked = dict(given)
    for param in params:
        if param.name in given and param.gives(given[param.name]):
            checked[param.name] = param.check(given[param.name])
            continue
        checked.pop(param.name, None)
        if param.default is not None and not param.insist:
            checked[param.name] = param.default
        elif param.required:
            raise ParamError(param.name, "", missing=True)
    return checked


def undeclared(type: str, given: Iterable[str], params: tuple[Param, ...]) -> list[str]:
    """Return a sentence for each parameter that this type does not have; such parameters are kept, as in EMQX."""
    known = {param.name for param in params}
    return [
        f"{name[:_SHOWN]}: {type} has no such parameter; the value has no effect" for name in given if name not in known
    ]


def _is_a(value: object, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _TYPES[kind])


def _check_url(key: str, value: str) -> None:
    try:
        parts = urlsplit(value)
        right = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        right = False
    if not right:
        raise ParamError(key, "expected a URL that begins with http:// or https:// and contains a host")
    if any(each <= " " or each == "\x7f" for each in value):
        raise ParamError(key, "a URL cannot contain whitespace or control characters; write a space as %20")
    if not parts.netloc.isascii():
        raise ParamError(key, "write the hostname in its ASCII form, such as xn--mnchen-3ya.example")


def read_duration(key: str, text: str, least: float = 0.001, most: float = 86_400.0) -> float:
    """Return the seconds of a duration in EMQX's form: ``500ms``, ``30s``, ``5m``, ``1h``. Raises ParamError."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ParamError(key, "expected a time such as 500ms, 5s or 1m")
    seconds = int(match[1]) * _UNITS[match[2]]
    if not least <= seconds <= most:
        raise ParamError(key, f"expected {number(least)} to {number(most)} seconds")
    return seconds


def resource_param(type: str) -> Param:
    """Return the parameter for the resource of an action, which must be of this type."""
    return Param(
        RESOURCE,
        0,
        "string",
        Text("Resource ID", "资源 ID"),
        Text(f"A {type} resource", f"{type} 类型的资源"),
        required=True,
    )


def retry_for_param(order: int) -> Param:
    """Return the parameter for how long a row of an action may wait for an unreachable system."""
    return Param(
        "retry_for",
        order,
        ["string", "number"],
        Text("Retry For", "重试时长"),
        Text(
            "How long a row waits for an unreachable server, in seconds or such as 30s, 5m; then the row fails and the "
            "fallbacks run. 0: the row fails immediately. Not set: no limit",
            "服务器不可用时数据等待的时长（秒，或 30s、5m）；超时后失败并执行备选动作。0：立即失败；不填：一直等待",
        ),
    )


def read_retry_for(params: Mapping[str, Any]) -> float | None:
    """Return ``retry_for`` in seconds; None: without a limit. Raises ParamError."""
    given = params.get("retry_for")
    if given is None or given in ("", "infinity"):
        return None
    if isinstance(given, str):
        seconds = 0.0 if given.strip() == "0" else read_duration("retry_for", given, 0.0, _MAX_RETRY_FOR)
    else:
        seconds = float(given)
    if not 0 <= seconds <= _MAX_RETRY_FOR:
        raise ParamError("retry_for", f"expected 0 to {number(_MAX_RETRY_FOR)} seconds")
    return seconds
