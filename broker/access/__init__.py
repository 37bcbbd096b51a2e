"""Authentication of clients and authorization of what they publish and subscribe to.

Here live users, access rules, bans, password hashes, SCRAM and the cache of decisions; what a refusal looks like on
the wire does not (``channel`` decides that, and counts). ``channel`` calls in through ``AccessControl``;
``server`` builds it.
"""
