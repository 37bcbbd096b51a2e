"""Several nodes as one broker, over NATS.

The broker's interface to the cluster is in ``core.cluster``. ``server`` creates this package's objects if ``[cluster]``
is configured; no other module imports it. ``nats_cluster`` assembles them. Each package imports only those above it::

    wire      the form of everything that nodes exchange
    nats      the connection to NATS: messages, buckets, watches
    members   the nodes of the cluster, and whose messages count; with context and calls, what every part uses
    replicas  copies of a node's data on other nodes
    links     routes, the messages that cross between nodes, and Shared Subscriptions
    shared    what belongs to all nodes: retained messages, and the rows of operators
    moving    the node of a session, and the move of a session to another node

``wills`` publishes the Will of a client whose node died. ``isolation`` decides what a node without NATS does.
``exclusive`` lets one client at a time have an exclusive subscription.
"""
