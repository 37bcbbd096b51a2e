"""Every function by its name, and the door through which an operator's own ones come in."""

from __future__ import annotations

from . import (  # noqa: F401 (each registers its functions)
    bits,
    compression,
    context,
    conversions,
    dates,
    encoding,
    formats,
    hashing,
    ids,
    maps_arrays,
    numbers,
    regexes,
    stores,
    strings,
)
from .function import (
    ANY,
    BOOLEAN,
    FLOAT,
    FUNCTIONS,
    INTEGER,
    LIST,
    MAP,
    NUMBER,
    OCTETS,
    TEXT,
    Context,
    Function,
    FunctionError,
    Kind,
    one_of,
    register,
)

__all__ = [
    "ANY",
    "BOOLEAN",
    "FLOAT",
    "FUNCTIONS",
    "INTEGER",
    "LIST",
    "MAP",
    "NUMBER",
    "OCTETS",
    "TEXT",
    "Context",
    "Function",
    "FunctionError",
    "Kind",
    "one_of",
    "register",
]
