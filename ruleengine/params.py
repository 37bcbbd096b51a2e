"""Parameters of actions and resources: declared once as data, shown by the API, and checked when something is created.

The definitions have the keys of EMQX 4.x (rule-engine API: ``order``, ``type``, ``required``, ``default``, ``enum``,
``format``, ``range``, ``schema``, ``items``, ``input``, ``title``, ``description``).
"""

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

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
_TRUTH: Final = {"true": True, "false": False}


class ParamError(ValueError):
    """A parameter that cannot be taken. ``key`` names it; ``missing``: it is required and was not given."""

    def __init__(self, key: str, text: str, missing: bool = False) -> None:
        super().__init__(f"{key}: {text}" if not missing else f"{key} is missing")
        self.key = key
        self.missing = missing


class Text:
    """A short text in the API's two languages."""

    __slots__ = ("en", "zh")

    def __init__(self, en: str, zh: str) -> None:
        self.en = en
        self.zh = zh

    def record(self) -> dict[str, str]:
        return {"en": self.en, "zh": self.zh}


class Param:
    """One parameter. ``extra`` are further keys of its definition (``input``, ``schema``, ``items``)."""

    __slots__ = (
        "default",
        "description",
        "enum",
        "extra",
        "format",
        "name",
        "order",
        "range",
        "required",
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
        **extra: Any,
    ) -> None:
        """``format``: ``url`` or a regular expression that must match the whole text."""
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
        self.extra = extra

    def record(self) -> dict[str, Any]:
        """Its definition object."""
        record: dict[str, Any] = {
            "order": self.order,
            "type": self.type,
            "title": self.title.record(),
            "description": self.description.record(),
        }
        if self.required:
            record["required"] = True
        for key in ("default", "enum", "format"):
            if getattr(self, key) is not None:
                record[key] = getattr(self, key)
        if self.range is not None:
            record["range"] = list(self.range)
        return record | self.extra

    def check(self, value: Any) -> Any:
        """``value`` as the parameter has it. Raises ParamError."""
        types = [self.type] if isinstance(self.type, str) else self.type
        if isinstance(value, str) and "boolean" in types and value in _TRUTH:
            value = _TRUTH[value]
        if self.enum is not None:
            # True == 1 in Python, not here.
            if not any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in self.enum):
                raise ParamError(self.name, f"expected one of {', '.join(map(repr, self.enum))}")
            return value
        if not any(_is_a(value, each) for each in types):
            raise ParamError(self.name, f"expected a {' or '.join(types)}, got {type(value).__name__}")
        if isinstance(value, str) and self.format == "url":
            _check_url(self.name, value)
        elif isinstance(value, str) and self.format is not None and not re.fullmatch(self.format, value):
            raise ParamError(self.name, f"expected the form {self.format}")
        if self.range is not None and not self.range[0] <= value <= self.range[1]:
            raise ParamError(self.name, f"expected {self.range[0]:g} to {self.range[1]:g}")
        return value


def check_params(given: Mapping[str, Any], params: tuple[Param, ...]) -> dict[str, Any]:
    """``given`` checked, defaults filled in; keys that nobody declared are kept. Raises ParamError."""
    checked = dict(given)
    for param in params:
        if param.name in given:
            checked[param.name] = param.check(given[param.name])
        elif param.default is not None:
            checked[param.name] = param.default
        elif param.required:
            raise ParamError(param.name, "", missing=True)
    return checked


def _is_a(value: Any, kind: str) -> bool:
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
        raise ParamError(key, "expected a URL that begins with http:// or https:// and names a host")
