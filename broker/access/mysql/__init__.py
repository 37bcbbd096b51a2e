"""The source that finds users and rules in MySQL or MariaDB: ``[access.mysql]``.

aiomysql is imported only if the table exists.
"""
