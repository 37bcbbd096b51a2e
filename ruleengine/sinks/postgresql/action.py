"""The actions that write rows into PostgreSQL and its relatives."""

from functools import partial
from typing import Final

from ...actions.action import ActionType
from ...actions.lookup_subscriptions import lookup_action
from ...databases.database_action import database_action, database_action_params
from ...params import Text
from .resource import Postgresql


def _type(name: str, title: str, resources: tuple[str, ...], order: int) -> ActionType:
    return ActionType(
        name,
        Text(f"Data to {title}", f"保存数据到 {title}"),
        Text(f"Write each row into a {title} database", f"将每条数据写入 {title} 数据库"),
        partial(database_action, Postgresql),
        database_action_params(resources[0]),
        resource_types=resources,
        category="data_persist",
        order=order,
    )


_TIMESCALE: Final = ("backend_timescale", "timescaledb")
ACTIONS: Final = (
    lookup_action("lookup_sub_to_pgsql", "PostgreSQL", Postgresql, ("backend_pgsql",), 40),
    _type("data_to_pgsql", "PostgreSQL", ("backend_pgsql",), 10),
    _type("data_to_timescale", "TimescaleDB", _TIMESCALE, 11),
    _type("data_to_timescaledb", "TimescaleDB", _TIMESCALE, 12),
    _type("data_to_matrix", "MatrixDB", ("backend_matrix",), 13),
)
