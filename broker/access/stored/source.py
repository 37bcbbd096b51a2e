"""StoredSource: users and rules that operators add while the node runs, as a source of access."""

from ..source import Source
from .rules import StoredAclRules
from .users import StoredUsers


class StoredSource(Source):
    """``users`` and ``rules``: the objects to which the endpoints write."""

    def __init__(self, users: StoredUsers, rules: StoredAclRules) -> None:
        super().__init__(users.name)
        self._users = users
        self._rules = rules

    def authenticator(self) -> StoredUsers:
        return self._users

    def authorizer(self) -> StoredAclRules:
        return self._rules
