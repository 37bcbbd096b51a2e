"""Operations: all queries and actions of operators in one object, which ``http`` and ``ctl`` share."""

from typing import TYPE_CHECKING

from taipan.broker.server import Server
from taipan.ruleengine.engine import RuleEngine

from ..configuration.settings import DashboardSettings, ManagementSettings
from ..history.history import History
from .access import Access
from .access_sources import AccessSources
from .acl import Acl
from .alarm_targets import AlarmTargets
from .alarm_thresholds import AlarmThresholds
from .alarms import Alarms
from .annotations import Annotations
from .apps import Apps
from .audit import Audit
from .backup.backup import Backup
from .banned import Bans
from .clients import Clients
from .configuration import Configuration
from .configuration_file import ConfigurationFile
from .dashboard_sessions import DashboardSessions
from .dashboard_users import DashboardUsers
from .delayed import DelayedMessageList
from .delivery_check import DeliveryChecks
from .explain import Explain
from .history import PastFigures
from .listeners import Listeners
from .live import Live
from .log_view import LogView
from .logs import Logs
from .loss import LossOfRows
from .lwm2m import Lwm2m
from .membership import Membership
from .modules import Modules
from .monitoring import Monitoring
from .node_calls import NodeCalls
from .nodes import Nodes
from .owners import Owners
from .prometheus import Prometheus
from .pubsub import PubSub
from .resources import Resources
from .retained import Retained
from .routes import Routes
from .rules import Rules
from .schemas import Schemas
from .shared_groups import SharedGroups
from .slow_subscriptions import SlowRanking
from .store_backup import StoreBackup
from .subscribers import Subscribers
from .subscriptions import Subscriptions
from .top_lists import TopLists
from .topic_metrics import TopicCounts
from .topic_tree import TopicTree
from .tracing import Traces
from .user_requests import UserRequests
from .users import Users
from .waiting_messages import WaitingMessages

if TYPE_CHECKING:
    from .openid.logins import OpenIdLogins


class Operations:
    """The operations of the node. Each attribute has the operations on one kind of object."""

    def __init__(
        self,
        server: Server,
        settings: ManagementSettings,
        engine: RuleEngine,
        history: History,
        dashboard: DashboardSettings,
    ) -> None:
        self.server = server
        self.settings = settings
        self.calls = NodeCalls(server)
        self.nodes = Nodes(server, self.calls)
        self.membership = Membership(server, self.calls)
        owners = Owners(server, self.calls)
        self.clients = Clients(server, self.calls, owners)
        self.waiting = WaitingMessages(server, self.calls, owners)
        self.subscriptions = Subscriptions(server, self.calls, owners)
        self.subscribers = Subscribers(server, self.calls)
        self.shared_groups = SharedGroups(server, self.calls)
        self.lwm2m = Lwm2m(server, self.calls)
        self.routes = Routes(server, self.calls)
        self.users = Users(server, self.calls)
        self.user_requests = UserRequests()
        self.acl = Acl(server)
        self.access = Access(server, self.calls, owners)
        self.access_sources = AccessSources(server, self.calls)
        self.banned = Bans(server)
        self.apps = Apps(
            server.tables, server.clock, settings.apps, self.calls, lambda: server.store_alarms.tables_lost
        )
        self.calls.serve(self.apps.uses_here)
        self.dashboard_users = DashboardUsers(server)
        self.dashboard_sessions = DashboardSessions(server, dashboard, self.dashboard_users)
        self.openid = self._make_openid(dashboard)
        self.explain = Explain(server, self.calls)
        self.delivery_checks = DeliveryChecks(server, self.calls, owners, self.access, self.explain)
        self.audit = Audit(server, self.calls)
        self.annotations = Annotations(server)
        self.top_lists = TopLists(server, self.calls)
        self.logs = Logs()
        self.log_view = LogView(self.calls)
        self.store_backup = StoreBackup(server)
        self.loss = LossOfRows(server)
        self.pubsub = PubSub(server, self.calls, owners)
        self.retained = Retained(server)
        self.delayed = DelayedMessageList(server, self.calls)
        self.topic_tree = TopicTree(server)
        self.listeners = Listeners(server, settings.shutdown_count, self.calls)
        self.monitoring = Monitoring(server, self.calls)
        self.rules = Rules(engine, self.calls)
        self.resources = Resources(engine, self.calls)
        self.schemas = Schemas(engine)
        self.history = PastFigures(history, self.calls)
        self.prometheus = Prometheus(server, self.monitoring, self.listeners, self.dashboard_sessions, self.calls)
        self.alarms = Alarms(server, self.calls)
        self.alarm_thresholds = AlarmThresholds(server, history)
        self.alarm_targets = AlarmTargets(server, self.calls, engine, self.pubsub)
        self.topic_metrics = TopicCounts(server, self.calls)
        has_dashboard = dashboard.enabled or (settings.enabled and dashboard.on_management)
        self.modules = Modules(server, self.topic_metrics, self.calls, has_dashboard)
        self.tracing = Traces(server, self.calls)
        self.slow_subscriptions = SlowRanking(server, self.calls)
        self.configuration = Configuration(server, settings, engine, self.calls)
        self.configuration_file = ConfigurationFile(self.configuration, self.calls)
        self.live = Live(server, settings, self.calls, history, engine, self.clients, self.tracing)
        self.backup = Backup(
            server, engine, self.users, self.apps, self.dashboard_users, self.alarm_targets, self.alarm_thresholds,
            settings, self.calls,
        )  # fmt: skip

    def _make_openid(self, dashboard: DashboardSettings) -> "OpenIdLogins | None":
        if dashboard.openid is None:
            return None
        from .openid.logins import OpenIdLogins  # imported here, because it needs PyJWT and cryptography

        return OpenIdLogins(self.server, dashboard.openid, self.dashboard_users, self.dashboard_sessions)
