"""The write-ahead log: batches of records, numbered, checked and flushed, in one SQLite file.

It knows records and bytes, and no session. ``persistence/`` calls in.
"""
