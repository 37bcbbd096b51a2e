"""The declaration of stored users and rules as a source of access."""

from typing import Final

from ..declaration import AccessSource
from ..emqx_plugin import EmqxPlugin


def _none(settings: None, context: object) -> None:
    """Return None: a node with stored users and rules has created the source itself; see ``AccessControl``."""


SOURCE: Final = AccessSource(
    name="stored", create=_none, place=2, rules_first=True, emqx=EmqxPlugin(orders=("mnesia",))
)
