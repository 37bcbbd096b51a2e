"""The write-ahead log: numbered batches of records with checksums, flushed to one SQLite file.

The package knows records and bytes, but not sessions. ``persistence/`` calls it."""
