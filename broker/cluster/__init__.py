"""Several nodes as one broker, over NATS: members, routes, links, owners of sessions, retained messages, rows, calls.

The broker's interface to the cluster is in ``core.cluster``. ``server`` creates this package's objects if ``[cluster]``
is configured; no other module imports it."""
