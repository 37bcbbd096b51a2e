"""ClickHouse: a column database whose HTTP interface receives INSERT statements.

The resource type ``backend_clickhouse`` and the action ``data_to_clickhouse``."""
