"""Proxy subscription, a module in EMQX: the node subscribes each client that connects, on its behalf."""

from typing import ClassVar

from ..config import AutoSubscribeSettings, AutoSubscribeTopic
from ..core.broker import Broker
from ..core.operator_subscriptions import subscribe_for_operator
from ..core.outcome import CLIENT_NAME_UNSAFE, NO_USERNAME, Outcome
from ..core.subscription_plan import plan_filter
from ..mqtt.constants import V5
from ..mqtt.packets import TopicFilter
from ..mqtt.topics import unsafe_level
from ..session.client_info import ClientInfo
from ..session.session import Session
from .extension import Extension


class AutoSubscribe(Extension):
    """Subscribes clients while it is loaded, as the ``auto_subscribe`` of the broker. As with other subscriptions by
    operators, access rules do not apply."""

    name: ClassVar[str] = "emqx_mod_subscription"
    description: ClassVar[str] = "Proxy subscription"

    def __init__(self, settings: AutoSubscribeSettings, broker: Broker) -> None:
        self._broker = broker
        self._topics = settings.topics
        self._active = False

    def use(self, settings: AutoSubscribeSettings) -> None:
        """Subscribe clients that connect from now on to these topics; existing subscriptions stay."""
        self._topics = settings.topics

    @property
    def active(self) -> bool:
        """Whether clients are subscribed."""
        return self._active

    def load(self) -> None:
        """Subscribe clients that connect from now on."""
        self._active = True
        self._broker.auto_subscribe = self._subscribe_all

    def unload(self) -> None:
        """Stop subscribing clients; existing subscriptions stay."""
        self._active = False
        self._broker.auto_subscribe = None

    def _subscribe_all(self, session: Session) -> None:
        client = session.client
        for topic in self._topics:
            refusal = self._subscribe(session, client, topic)
            if refusal is not None:
                now = self._broker.clock.now()
                self._broker.note_refusal("subscribe_refused", client.client_id, topic.topic, refusal, now)

    def _subscribe(self, session: Session, client: ClientInfo, topic: AutoSubscribeTopic) -> Outcome | None:
        """Subscribe the session; return why it was not subscribed."""
        text = _filled(topic.topic, client)
        if isinstance(text, Outcome):
            return text
        entry = TopicFilter(text, topic.qos)
        if client.proto_ver == V5:
            entry.no_local, entry.retain_as_published = topic.nl, topic.rap
            entry.retain_handling = topic.rh
        return subscribe_for_operator(self._broker, session, plan_filter(entry, client, self._broker.rewriting))


def _filled(template: str, client: ClientInfo) -> str | Outcome:
    """Return the filter with the levels ``%c`` and ``%u`` filled in. ``%u`` is the proved username, because access
    rules do not protect the filter."""
    levels = template.split("/")
    for place, level in enumerate(levels):
        if level not in ("%c", "%u"):
            continue
        name = client.client_id if level == "%c" else client.user
        if not name:
            return NO_USERNAME
        if unsafe_level(name):
            return CLIENT_NAME_UNSAFE
        levels[place] = name
    return "/".join(levels)
