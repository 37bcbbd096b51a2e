"""Durability: data is on disk before it is acknowledged. Group commit, journals of sessions and node, paging, tables.

The write-ahead log itself is in ``log/``. The broker and the channels call this package; ``store/`` assembles it.
"""
