"""Authentication of clients, and authorization of their publications and subscriptions.

This package contains users, access rules, bans, password hashes, SCRAM and the cache of decisions. ``channel`` calls
this package through ``AccessControl``, which ``server`` creates. ``channel`` also decides the form of a refusal on the
wire, and counts it."""
