"""Several nodes as one broker, over NATS: members, routes, links, who owns a session, retained messages, rows, calls.

Not here: what the broker asks of it (``core.cluster``). ``server`` builds it where ``[cluster]`` is configured, and
imports it nowhere else.
"""
