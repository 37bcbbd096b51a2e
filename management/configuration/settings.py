"""The settings ``[management]`` and ``[dashboard]``: addresses, access, and how they answer."""

from typing import Final, Literal

import msgspec

from taipan.broker.config import Natural, PositiveBytes, PositiveSeconds, TlsSettings

from .openid import OpenIdSettings


class AppSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A permanent application, with its secret in the configuration."""

    id: str
    secret: str
    scopes: tuple[Literal["all", "read", "publish"], ...] = ("all",)  # of the HTTP API that it may use


class HistorySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[history]``: the metrics of the last hour, two days and 30 days."""

    enabled: bool = True  # kept in node.data_dir, 11 MB, for GET /api/v4/monitor and the dashboard


class ManagementSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[management]``."""

    enabled: bool = True
    bind: str = "127.0.0.1:8081"
    tls: TlsSettings | None = None
    max_row_limit: Natural = 10_000  # rows a page, where a request says nothing and at most
    error_status: Literal["http", "emqx"] = "http"  # emqx: failures come with HTTP 200
    shutdown_count: Literal["array", "object"] = "array"  # the form of a listener's shutdown_count
    max_body: PositiveBytes = 8_388_608  # of a request
    max_import: PositiveBytes = 268_435_456  # of a request that imports
    max_connections: Natural = 512
    max_unauthenticated: Natural = 256  # of these from one address, those that gave no right credentials yet
    first_request_timeout: PositiveSeconds = 5.0  # seconds until a connection has sent its first request
    read_timeout: PositiveSeconds = 30.0  # for a body of less than 16 KiB a second
    max_live_streams: Natural = 128  # of GET /api/v4/live, at a time
    public_metrics: bool = False  # Prometheus without credentials
    public_openapi: bool = False  # the OpenAPI document without credentials
    backup_retained: bool = False  # whether exports hold retained messages
    host_names: list[str] = []  # by which it may be asked; empty: any
    allowed_origins: list[str] = []  # of pages that may change things, beside those of the same origin
    apps: list[AppSettings] = []


class DashboardSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[dashboard]``."""

    enabled: bool | None = None  # None: as management.enabled; the settings of a node have it as it is then
    bind: str = "127.0.0.1:18083"
    tls: TlsSettings | None = None
    on_management: bool = False  # whether it is also at the management server, under /dashboard
    static_dir: str = ""  # the files of the page; empty: those of Taipan
    static_dir_eval: bool = True  # whether scripts of static_dir may make code of text, as Vue's templates do
    session_lifetime: PositiveSeconds = 28_800.0  # seconds from a login until the next one is asked for
    max_sessions: Natural = 1000  # one more ends the oldest of the user who has the most
    max_connections: Natural = 512
    max_unauthenticated: Natural = 256  # of these from one address, those that gave no right credentials yet
    first_request_timeout: PositiveSeconds = 5.0  # seconds until a connection has sent its first request
    openid: OpenIdSettings | None = None


RELOADED: Final[dict[str, object]] = {"apps": [], "host_names": [], "allowed_origins": []}
"""The settings of ``[management]`` that a reload may change, with their defaults."""
