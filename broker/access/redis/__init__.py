"""The source that finds users and rules in Redis or Valkey: ``[access.redis]``.

The library redis is imported only where the table is there.
"""
