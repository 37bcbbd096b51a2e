"""The source for users and rules that operators add while the node runs, kept in tables.

It answers from memory. The server creates it, because the endpoints for users and rules write to it;
``access.registry`` lists it."""
