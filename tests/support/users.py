"""Users of the configuration file, for tests in which a user name has to be proved."""

from typing import Any

from taipan.broker.access.password_hash import ScryptHash

PASSWORD = b"x"
_HASH = str(ScryptHash.create(PASSWORD, n=16))


def users(*names: str, superusers: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """For ``[access]``; all have the same password, which costs no time."""
    made: list[dict[str, Any]] = [{"username": name, "password_hash": _HASH} for name in names]
    return made + [{"username": name, "password_hash": _HASH, "is_superuser": True} for name in superusers]
