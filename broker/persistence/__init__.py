"""What is on disk before it is acknowledged: group commit, journals of sessions and node, paging, tables of rows.

The write-ahead log itself is in ``log/``. The broker and the channels call in; ``store/`` assembles it.
"""
