"""Person: the name and the role of a user, from the claims of the provider."""

from typing import Any, Final, NamedTuple

from ...configuration.openid import OpenIdSettings
from ..caller import ADMINISTRATOR, OPERATOR, VIEWER
from ..dashboard_users import MAX_NAME_LENGTH
from .refused import OpenIdRefused

PREFIX: Final = "openid:"
"""Before the name. The names of dashboard users have no colon, so no name can mean both."""


class Person(NamedTuple):
    """A user who has logged in at the provider."""

    name: str
    role: str


def person_of(claims: dict[str, Any], settings: OpenIdSettings) -> Person:
    """Raises OpenIdRefused for a user without a usable name or without a role."""
    return Person(PREFIX + _name(claims, settings), _role(claims, settings))


def lacks(claims: dict[str, Any], settings: OpenIdSettings) -> bool:
    """Return whether a claim is missing that name or role need."""
    name = settings.username_claim
    needed = (name, "email_verified") if name == "email" else (name,)
    return not claims.keys() >= set(needed) or _found(claims, settings.roles_claim) is None


def _name(claims: dict[str, Any], settings: OpenIdSettings) -> str:
    claim = settings.username_claim
    name = claims.get(claim)
    if not isinstance(name, str) or not name:
        raise OpenIdRefused("user", f"no claim {claim}", "username_claim")
    if len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_LENGTH or not name.isprintable():
        raise OpenIdRefused(
            "user", f"claim {claim}: expected at most {MAX_NAME_LENGTH} printable bytes", "username_claim"
        )
    if claim == "email" and claims.get("email_verified") is not True:
        raise OpenIdRefused("user", "email_verified is not true", "username_claim")
    return name


def _role(claims: dict[str, Any], settings: OpenIdSettings) -> str:
    found = _found(claims, settings.roles_claim)
    groups = {each for each in (found if isinstance(found, list) else [found]) if isinstance(each, str)}
    for role, those in (
        (ADMINISTRATOR, settings.administrators),
        (OPERATOR, settings.operators),
        (VIEWER, settings.viewers),
    ):
        if not groups.isdisjoint(those):
            return role
    if settings.default_role:
        return settings.default_role
    where = (
        f"claim {settings.roles_claim}: none of {len(groups)} values" if groups else f"no claim {settings.roles_claim}"
    )
    raise OpenIdRefused("role", f"{where} gives a role", "roles_claim")


def _found(claims: dict[str, Any], name: str) -> object:
    """Return the claim of this name, ``None`` if there is none; ``realm_access.roles`` is also the member ``roles`` of
    the claim ``realm_access``."""
    if name in claims:
        return claims[name]
    found: object = claims
    for step in name.split("."):
        if not isinstance(found, dict):
            return None
        found = found.get(step)
    return found
