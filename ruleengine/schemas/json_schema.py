"""JSON Schema: the payload is a JSON text. References to other documents and look-around in patterns are refused."""

from __future__ import annotations

import json
from typing import Any, Final

from ..functions.budget import Budget
from ..functions.values import decode_json, encode_json
from .codec import BYTES_PER_STEP, MissingLibrary, SchemaError, refuse_message

NAME: Final = "json"


class JsonSchema:
    """A validator for draft 2020-12, unless ``$schema`` names another one."""

    def __init__(self, text: str) -> None:
        """Raises SchemaError."""
        try:
            import jsonschema_rs
        except ImportError as error:
            raise MissingLibrary(NAME) from error
        try:
            self._validator = jsonschema_rs.validator_for(
                json.loads(text), retriever=_refuse, pattern_options=jsonschema_rs.RegexOptions()
            )
        except (ValueError, jsonschema_rs.ReferencingError) as error:
            raise SchemaError(f"not a JSON Schema: {_first_line(error)}") from error
        except RecursionError:
            raise SchemaError("the schema is nested too deeply") from None
        self._wrong = jsonschema_rs.ValidationError

    def decode(self, data: bytes, message: str | None, budget: Budget) -> object:
        refuse_message(message, NAME)
        budget.step(len(data) // BYTES_PER_STEP)
        value = decode_json(data, budget)
        self._check(value)
        return value

    def encode(self, value: object, message: str | None, budget: Budget) -> bytes:
        text = encode_json(value, budget)
        self.decode(text.encode(), message, budget)
        return text.encode()

    def _check(self, value: object) -> None:
        try:
            self._validator.validate(value)
        except self._wrong as error:
            path = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in error.instance_path)
            place = f"{path.lstrip('.')[:64]}: " if path else ""
            raise ValueError(f"the data does not match the schema: {place}{_first_line(error)}") from error


def _refuse(uri: str) -> Any:
    raise ValueError(f"{uri} is another document")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
