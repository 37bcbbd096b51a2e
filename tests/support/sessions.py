"""Sessions without a broker."""

from taipan.broker.config import ZoneSettings
from taipan.broker.session.client_info import ClientInfo
from taipan.broker.session.limits import Limits
from taipan.broker.session.protocols import DropObserver
from taipan.broker.session.session import Session


class IgnoreDrops:
    """Is told of drops and does nothing."""

    def delivery_dropped(self, *_: object) -> None:
        pass


def make_session(
    client_id: str, limits: Limits | None = None, observer: DropObserver | None = None, expiry_interval: int = 0
) -> Session:
    """A session made at time 0; ``observer`` is told of drops."""
    client = ClientInfo("node", ZoneSettings(), client_id=client_id)
    return Session(client, limits or Limits(), observer or IgnoreDrops(), 0.0, expiry_interval)
