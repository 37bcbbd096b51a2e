"""ConfigurationSource: users and rules of the configuration file as a source of access."""

from ..scram import ScramVerifier
from ..source import Source, SourceContext
from .rules import ConfiguredAclRules
from .users import CONFIGURATION, ConfiguredUsers


class ConfigurationSource(Source):
    """Each reload creates a new one."""

    def __init__(self, settings: None, context: SourceContext) -> None:
        """Raises ``ValueError`` for a hash or a rule that cannot be read."""
        super().__init__(CONFIGURATION)
        self._users = ConfiguredUsers(context.access.users)
        self._rules = ConfiguredAclRules(context.access.rules)

    def authenticator(self) -> ConfiguredUsers:
        return self._users

    def authorizer(self) -> ConfiguredAclRules:
        return self._rules

    def keeps(self, username: str) -> bool:
        return self._users.has(username)

    def scram_verifiers(self) -> list[ScramVerifier]:
        return self._users.scram_verifiers()
