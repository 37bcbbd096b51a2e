"""The source that finds users and rules in a directory: ``[access.ldap]``.

pyasn1-modules is imported only if the table exists.
"""
