"""PublisherRights: whether a client may publish, by the current rules, messages that the node has stored."""

from typing import Final

from ..mqtt.message import Message, Publisher
from ..session.client_info import ClientInfo
from .control import AccessControl
from .decision import IS_SUPERUSER, Decision

_UNKNOWN_PUBLISHER: Final = Decision(False, "-")


class PublisherRights:
    """Checks retained messages and stored Will Messages. Their publisher may have disconnected long ago."""

    def __init__(self, access: AccessControl) -> None:
        self._access = access

    def may_be_retained(self, message: Message) -> bool:
        """Return whether a retained message may still be delivered."""
        if message.publisher is None:
            return True  # a message of the node itself
        decision = self.decide(message.publisher, message.topic)
        # An external service cannot be asked about each of a million messages: this one was allowed when it was
        # published.
        return decision is None or decision.allowed

    @property
    def unasked_setting(self) -> str:
        """The setting for a refusal without an answer."""
        return self._access.authorization.unasked_setting

    def decide(self, publisher: Publisher | None, topic: str) -> Decision | None:
        """Decide whether ``publisher`` may publish to ``topic``. ``None``: an external service would have to be asked.

        ``topic``: the final topic of the message, with the mount point of its publisher."""
        if not isinstance(publisher, ClientInfo):
            return _UNKNOWN_PUBLISHER
        if publisher.mountpoint and topic.startswith(publisher.mountpoint):
            topic = topic[len(publisher.mountpoint) :]
        authentication, authorization = self._access.authentication, self._access.authorization
        if publisher.is_superuser:
            publisher.is_superuser = authentication.is_superuser(publisher)  # it may have lost the right since
        decision = authorization.authorize(publisher, "publish", topic)
        if decision is not None and not decision.allowed and authentication.is_superuser(publisher):
            return IS_SUPERUSER
        return decision
