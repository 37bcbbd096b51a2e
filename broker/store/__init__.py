"""The durable store of a node: opening, recovery at the start, compaction and closing.

Recovery creates sessions in the broker, so this package is above ``core``. ``server.py`` calls it."""
