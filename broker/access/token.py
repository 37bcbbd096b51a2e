"""Token: what a client's JSON Web Token says, once it is verified."""

from dataclasses import dataclass

from .acl import AclRule


@dataclass(slots=True)
class Token:
    """What of a client's token counts after CONNECT. ``expires``: unix seconds or ``None``. ``rules``: those of its
    access claim, ``None`` where it has none. ``setting``: the table of the source that has verified it."""

    expires: float | None
    rules: tuple[AclRule, ...] | None
    setting: str
