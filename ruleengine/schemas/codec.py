"""The errors and limits that all parser types share. What each implements is ``functions.function.SchemaCodec``."""

from __future__ import annotations

from typing import Final

EXTRA: Final = "schemas"
"""The extra of the package that installs the libraries of all parser types."""
MAX_SCHEMA: Final = 262_144
"""Maximum length of a schema's text in characters."""
BYTES_PER_STEP: Final = 8
"""Decoding is slower than reading: a step of the budget for so many bytes of the payload."""


class SchemaError(ValueError):
    """A schema that cannot be used; the text explains why."""


class MissingLibrary(SchemaError):
    """The library of a parser type is not installed on this node."""

    def __init__(self, parser_type: str) -> None:
        super().__init__(f"{parser_type} schemas need more packages: pip install 'taipan-mqtt[{EXTRA}]'")


def refuse_message(message: str | None, parser_type: str) -> None:
    """Raise ValueError if a message type is given to a parser type that has none."""
    if message is not None:
        raise ValueError(f"{parser_type} schemas have no message types")
