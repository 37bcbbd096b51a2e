"""Operations: everything an operator may ask or order, in one object that both doors share."""

from broker.server import Server

from ..settings import ManagementSettings
from .apps import Apps
from .explain import Explain
from .nodes import Nodes


class Operations:
    """One for the node. Each attribute is one noun's operations."""

    def __init__(self, server: Server, settings: ManagementSettings) -> None:
        self.server = server
        self.settings = settings
        self.nodes = Nodes(server)
        self.apps = Apps(server.tables, server.clock, settings.apps)
        self.explain = Explain(server)
