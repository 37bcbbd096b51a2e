"""Authentication of clients, and authorization of their publications and subscriptions.

This package contains users, access rules, bans, password hashes, SCRAM and the cache of decisions. The form of a
refusal on the wire is decided, and counted, in ``channel``, which calls this package through ``AccessControl``;
``server`` creates it."""
