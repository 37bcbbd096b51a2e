"""ConfiguredAclRules: the access rules of the configuration file."""

from collections.abc import Iterator, Sequence

from ...config import RuleSettings
from ...session.client_info import ClientInfo
from ..acl import AclRule, ReadRule, asked_about
from ..decision import Decision


class ConfiguredAclRules:
    """The ``[[access.rules]]`` of the configuration file, a ``AclRuleSource``."""

    __slots__ = ("name", "rules")

    def __init__(self, settings: Sequence[RuleSettings]) -> None:
        self.name = "configuration"
        self.rules = tuple(AclRule(rule, f"access.rules.{index}") for index, rule in enumerate(settings))

    @property
    def has_rules(self) -> bool:
        return bool(self.rules)

    def decide(self, client: ClientInfo, action: str, topic: str) -> Decision | None:
        if not self.rules:
            return None
        publish = action == "publish"
        topic, levels = asked_about(publish, topic)
        for rule in self.rules:
            if not (rule.publish if publish else rule.subscribe):
                continue
            if rule.concerns(client) and rule.matches_topic(client, topic, levels):
                return rule.decision
        return None

    def read_rules(self, client: ClientInfo, topic_filter: str) -> Iterator[ReadRule]:
        return _read_rules(self.rules, client)


def _read_rules(rules: Sequence[AclRule], client: ClientInfo) -> Iterator[ReadRule]:
    for rule in rules:
        if rule.concerns(client):
            yield from rule.read_rules(client)
