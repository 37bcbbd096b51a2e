"""What is on disk before it is acknowledged: group commit, sessions and messages as records, paging, tables of rows.

The write-ahead log itself is in ``log/``. The broker and the channels call in; ``store/`` assembles it.
"""
