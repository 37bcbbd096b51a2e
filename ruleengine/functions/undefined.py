"""The value of what is not there: a missing key, an unknown column, a CASE without a hit."""

from __future__ import annotations

from typing import Final, Literal, final


@final
class Undefined:
    """Has one instance, `UNDEFINED`; it is neither JSON null (`None`) nor a text, and it is false."""

    __slots__ = ()
    _instance: Undefined | None = None

    def __new__(cls) -> Undefined:
        """The one instance, so that `is UNDEFINED` holds after copying and pickling too."""
        if cls._instance is None:
            cls._instance = super().__new__(cls)
        return cls._instance

    def __repr__(self) -> str:
        return "undefined"

    def __bool__(self) -> Literal[False]:
        return False

    def __copy__(self) -> Undefined:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Undefined:
        return self

    def __reduce__(self) -> str:
        return "UNDEFINED"


UNDEFINED: Final = Undefined()
