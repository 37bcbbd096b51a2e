"""All functions by name, and the interface for operators to register their own."""

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
    BYTES,
    FLOAT,
    FUNCTIONS,
    INTEGER,
    LIST,
    MAP,
    NUMBER,
    TEXT,
    Function,
    FunctionContext,
    FunctionError,
    Kind,
    make_function,
    one_of,
    register,
)

__all__ = [
    "ANY",
    "BOOLEAN",
    "BYTES",
    "FLOAT",
    "FUNCTIONS",
    "INTEGER",
    "LIST",
    "MAP",
    "NUMBER",
    "TEXT",
    "Function",
    "FunctionContext",
    "FunctionError",
    "Kind",
    "make_function",
    "one_of",
    "register",
]
