"""The source that finds users and rules in Redis or Valkey: ``[access.redis]``.

The library redis is imported only if the table exists.
"""
