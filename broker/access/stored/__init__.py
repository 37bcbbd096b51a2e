"""The source of users and rules that operators add while the node runs, kept in tables.

It answers from memory. The server makes it, as the endpoints of users and rules write to it; ``access.registry`` lists
it.
"""
