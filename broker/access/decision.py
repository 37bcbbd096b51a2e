"""Decision: whether a client's request is allowed, and the setting that decided; DecisionStep: one step of the
decision."""

from dataclasses import dataclass, field
from typing import Final


@dataclass(slots=True)
class Decision:
    """Rules and settings create their decisions once and share them, so that no decision allocates an object.

    ``setting``: the setting that decided, for the log: a key of the configuration such as ``access.rules.3``, the API
    path that deletes a stored rule, or ``-`` if no operator can change it. ``ignored``: no source had a rule.
    ``lasting``: it may be cached; the decision after a failure of a service may not. ``cached``: it comes from the ACL
    cache."""

    allowed: bool
    setting: str
    ignored: bool = False
    lasting: bool = True
    cached: bool = False
    _as_cached: "Decision | None" = field(default=None, repr=False, compare=False)

    def as_cached(self) -> "Decision":
        """Return the decision as the ACL cache returns it. Created once."""
        if self.cached:
            return self
        known = self._as_cached
        if known is None:
            known = self._as_cached = Decision(self.allowed, self.setting, self.ignored, self.lasting, True)
        return known


@dataclass(slots=True)
class DecisionStep:
    """The answer of one part of ``Authorization``, recorded for an operator. ``decision``: ``None`` if it has none.
    ``asked``: an external service that was not asked has no decision, but could have one."""

    source: str
    decision: Decision | None
    asked: bool = True
    failure: str = ""


IS_SUPERUSER: Final = Decision(True, "is_superuser")
ACL_DISABLED: Final = Decision(True, "enable_acl")
ALLOWED_BY_HOOK: Final = Decision(True, "-")
DENIED_BY_HOOK: Final = Decision(False, "-")
