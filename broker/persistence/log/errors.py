"""Errors of a store, and their description in one line."""

import os
from typing import Final

import apsw

OF_THE_DISK: Final = (
    apsw.FullError,
    apsw.IOError,
    apsw.CantOpenError,
    apsw.PermissionsError,
    apsw.AuthError,
    apsw.BusyError,
    apsw.LockedError,
    apsw.NoMemError,
    apsw.InterruptError,
)
"""Errors that do not mean damage of the stored data; any other error on reading does."""


class StoreError(Exception):
    """The store cannot be used; the text is one line."""


class NewerSchema(StoreError):
    """A newer version of the program wrote this file."""


class WriteTrouble(StoreError):
    """Nothing was written this time; a later attempt may succeed."""


def describe(error: BaseException, errno: int = 0) -> str:
    """Describe ``error`` in one line. ``errno`` is the latest error of the operating system, 0 if there was none."""
    if isinstance(error, apsw.FullError):
        return "no space left for the store"
    if isinstance(error, OSError):
        return f"{error.strerror or error}"
    if isinstance(error, apsw.Error):
        extended = getattr(error, "extendedresult", 0)
        code = apsw.mapping_extended_result_codes.get(extended, type(error).__name__)
        return f"{code}: {os.strerror(errno)}" if errno else f"{code}: {error}"
    return f"{type(error).__name__}: {error}"
