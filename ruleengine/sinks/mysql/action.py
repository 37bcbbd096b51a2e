"""The action ``data_to_mysql``: writes rows into a ``backend_mysql`` resource."""

from functools import partial
from typing import Final

from ...actions.action import ActionType
from ...actions.lookup_subscriptions import lookup_action
from ...databases.database_action import database_action, database_action_params
from ...params import Text
from .resource import Mysql

TYPE: Final = ActionType(
    "data_to_mysql",
    Text("Data to MySQL", "保存数据到 MySQL"),
    Text("Write each row into a MySQL or MariaDB database", "将每条数据写入 MySQL 或 MariaDB 数据库"),
    partial(database_action, Mysql),
    database_action_params("backend_mysql"),
    resource_types=("backend_mysql",),
    category="data_persist",
    order=14,
)
ACTIONS: Final = (TYPE, lookup_action("lookup_sub_to_mysql", "MySQL", Mysql, ("backend_mysql",), 41))
