"""Decision: whether a client may do what it asks for, and what decided that; DecisionStep: one question on the way."""

from dataclasses import dataclass, field
from typing import Final


@dataclass(slots=True)
class Decision:
    """Rules and settings make theirs once and share it: nothing is allocated for a decision.

    ``setting``: what decided, for the log: a key of the configuration such as ``access.rules.3``, the path of the API
    that removes a stored rule, or ``-`` where no operator can change it. ``ignored``: no source had a rule for it.
    ``lasting``: it may be cached; a service that failed has said nothing that lasts. ``cached``: it comes from the ACL
    cache.
    """

    allowed: bool
    setting: str
    ignored: bool = False
    lasting: bool = True
    cached: bool = False
    _as_cached: "Decision | None" = field(default=None, repr=False, compare=False)

    def as_cached(self) -> "Decision":
        """The same, as the ACL cache gives it. Made once."""
        if self.cached:
            return self
        known = self._as_cached
        if known is None:
            known = self._as_cached = Decision(self.allowed, self.setting, self.ignored, self.lasting, True)
        return known


@dataclass(slots=True)
class DecisionStep:
    """What one part of ``Authorization`` said, recorded for an operator who asks. ``decision``: ``None`` where it says
    nothing. ``asked``: a service outside that nobody asked says nothing either, and could."""

    source: str
    decision: Decision | None
    asked: bool = True
    failure: str = ""


IS_SUPERUSER: Final = Decision(True, "is_superuser")
ACL_DISABLED: Final = Decision(True, "enable_acl")
ALLOWED_BY_HOOK: Final = Decision(True, "-")
DENIED_BY_HOOK: Final = Decision(False, "-")
