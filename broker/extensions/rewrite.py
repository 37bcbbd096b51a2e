"""Topic rewrite, a module in EMQX: publications and subscriptions to one topic are those of another topic."""

from typing import ClassVar, Final

from ..config import RewriteSettings
from ..core.broker import Broker
from ..core.delayed_topic import PREFIX, split
from ..core.rewrite_rules import INVALID, Pieces, RewriteRules, filled
from ..mqtt.message import Publisher
from ..mqtt.topics import is_plain, valid_filter, valid_name
from .extension import Extension

_MAX_REMEMBERED: Final = 1024
_MAX_REMEMBERED_TOPIC: Final = 256


class TopicRewrite(Extension):
    """Rewrites topics while it is loaded, as the ``rewriting`` of the broker."""

    name: ClassVar[str] = "emqx_mod_rewrite"
    description: ClassVar[str] = "Topic rewrite"

    def __init__(self, settings: RewriteSettings, broker: Broker) -> None:
        self._broker = broker
        self._active = False
        self.use(settings)

    def use(self, settings: RewriteSettings) -> None:
        """Rewrite by these rules from now on; existing subscriptions stay as they are."""
        self._publish = RewriteRules(rule for rule in settings.rules if rule.action != "subscribe")
        self._subscribe = RewriteRules(rule for rule in settings.rules if rule.action != "publish")
        self._remembered: dict[str, Pieces | None] = {}

    @property
    def active(self) -> bool:
        """Whether topics are rewritten."""
        return self._active

    def load(self) -> None:
        """Rewrite topics from now on."""
        self._active = True
        self._broker.rewriting = self

    def unload(self) -> None:
        """Stop rewriting topics; existing subscriptions stay as they are."""
        self._active = False
        self._broker.rewriting = None

    def published(self, topic: str, publisher: Publisher | None) -> str:
        """Return the topic of a publication to ``topic``: ``topic`` itself if no rule changes it, an empty string if
        the new one is not valid. Of ``$delayed/<seconds>/<topic>``, the inner topic is rewritten."""
        if topic.startswith(PREFIX):
            found = split(topic)
            if found is None:
                return topic
            inner = self.published(found[1], publisher)
            if inner == found[1]:
                return topic
            return INVALID if inner == INVALID else f"{PREFIX}{found[0]}/{inner}"
        remembered = self._remembered
        if topic in remembered:
            pieces = remembered[topic]
        else:
            pieces = self._publish.look(topic)
            if len(topic) <= _MAX_REMEMBERED_TOPIC:
                if len(remembered) >= _MAX_REMEMBERED:
                    remembered.clear()
                remembered[topic] = pieces
        if pieces is None:
            return topic
        new = filled(pieces, publisher)
        return new if valid_name(new) else INVALID

    def subscribed(self, topic_filter: str, client: Publisher) -> str:
        """Return the filter of a subscription to ``topic_filter``, which has no group: ``topic_filter`` itself if no
        rule changes it, an empty string if the new one is not valid."""
        pieces = self._subscribe.look(topic_filter)
        if pieces is None:
            return topic_filter
        new = filled(pieces, client)
        return new if valid_filter(new) and is_plain(new) else INVALID
