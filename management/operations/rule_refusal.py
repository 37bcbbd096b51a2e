"""What the rule engine refuses, in the words of the API."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from taipan.ruleengine import error as engine

from .refusal import EXISTS, MISSING, UNKNOWN, WRONG, Refusal

_CODES: Final[dict[str, int]] = {
    engine.MISSING: MISSING,
    engine.WRONG: WRONG,
    engine.UNKNOWN: UNKNOWN,
    engine.EXISTS: EXISTS,
    engine.IN_USE: WRONG,
}


@contextmanager
def engine_refusals() -> Iterator[None]:
    """Within the block, RuleEngineError is Refusal."""
    try:
        yield
    except engine.RuleEngineError as error:
        raise Refusal(_CODES[error.kind], error.message) from None
