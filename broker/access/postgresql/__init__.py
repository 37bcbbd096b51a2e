"""The source that finds users and rules in PostgreSQL: ``[access.postgresql]``.

asyncpg is imported only if the table exists.
"""
