"""The declaration of ``[access.postgresql]``."""

from typing import Final

from ..sql_settings import SqlAccessSettings, emqx_plugin, sql_access_source


class PostgresqlAccessSettings(SqlAccessSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The table ``[access.postgresql]``."""

    server: str = "127.0.0.1:5432"
    username: str = "root"


SOURCE: Final = sql_access_source(
    "postgresql",
    5,
    PostgresqlAccessSettings,
    5432,
    "taipan.broker.access.postgresql.source:PostgresqlSource",
    emqx_plugin("pgsql", ("pgsql", "postgres"), asks_next=True),
)
