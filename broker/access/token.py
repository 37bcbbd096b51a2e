"""Token: the contents of a client's JSON Web Token after verification."""

from dataclasses import dataclass

from .acl import AclRule


@dataclass(slots=True)
class Token:
    """The contents of a client's token that are needed after CONNECT. ``expires``: Unix seconds or ``None``. ``rules``:
    the rules in its access claim, ``None`` if it has none. ``setting``: the table of the source that has verified
    it."""

    expires: float | None
    rules: tuple[AclRule, ...] | None
    setting: str
