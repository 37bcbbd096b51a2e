"""Refusal: why an operation is not possible, with the specification's code (section Errors)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from taipan.broker.observability.log_text import one_line
from taipan.ruleengine import error as engine

SUCCESS: Final = 0
RPC_ERROR: Final = 101
UNKNOWN: Final = 102
WRONG_CREDENTIALS: Final = 103
NO_CREDENTIALS: Final = 104
NO_USER: Final = 105
ADMIN_STAYS: Final = 106
MISSING: Final = 107
WRONG: Final = 108
NOT_JSON: Final = 109
PLUGIN_ENABLED: Final = 110
PLUGIN_DISABLED: Final = 111
NOT_ONLINE: Final = 112
EXISTS: Final = 113
OLD_PASSWORD_WRONG: Final = 114
BAD_TOPIC: Final = 115

_ENGINE_CODES: Final[dict[str, int]] = {
    engine.MISSING: MISSING,
    engine.WRONG: WRONG,
    engine.UNKNOWN: UNKNOWN,
    engine.EXISTS: EXISTS,
    engine.IN_USE: WRONG,
}


class Refusal(Exception):
    """``code`` is one of the above; ``message`` is one line for the caller, whatever it quotes from the request.
    ``line`` and ``column``: position in SQL, from 1; 0: none."""

    def __init__(self, code: int, message: str, line: int = 0, column: int = 0) -> None:
        message = one_line(message)
        super().__init__(message)
        self.code = code
        self.message = message
        self.line = line
        self.column = column


class Forbidden(Refusal):
    """The caller is known but is not allowed to do this: HTTP 403."""

    def __init__(self, message: str) -> None:
        super().__init__(WRONG, message)


class Busy(Refusal):
    """Too many operations are running, or the node is stopping; the caller may try again later. HTTP 503."""

    def __init__(self, message: str) -> None:
        super().__init__(RPC_ERROR, message)


def missing(key: str) -> Refusal:
    return Refusal(MISSING, f"{key} is missing")


def wrong(key: str, what: str) -> Refusal:
    return Refusal(WRONG, f"{key}: {what}")


def not_found(kind: str, name: str) -> Refusal:
    return Refusal(UNKNOWN, f"no {kind} {name}")


@contextmanager
def engine_refusals() -> Iterator[None]:
    """Context manager that turns the rule engine's RuleEngineError into Refusal."""
    try:
        yield
    except engine.RuleEngineError as error:
        raise Refusal(_ENGINE_CODES[error.kind], error.message, error.line, error.column) from None
