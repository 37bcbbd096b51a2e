"""Durability: data is on disk before it is acknowledged. Contains group commit, the journals of sessions and of the
node, paging, and tables.

The write-ahead log is in ``log/``. The broker and the channels call this package; ``store/`` assembles it."""
