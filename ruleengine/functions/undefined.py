"""The undefined value: a missing key, an unknown column, a CASE without a match."""

from __future__ import annotations

from typing import Final, Literal, final


@final
class Undefined:
    """Has one instance, `UNDEFINED`; it is neither JSON null (`None`) nor text, and it is false."""

    __slots__ = ()
    _instance: Undefined | None = None

    def __new__(cls) -> Undefined:
        """Return the only instance, so that `is UNDEFINED` also works after copying and pickling."""
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
