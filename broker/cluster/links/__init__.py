"""Messages that cross between nodes.

``routes`` announces the topic filters of this node's subscribers, and adds those of other nodes to this node's router,
which then passes their messages to the session of a ``link``. ``link_writer`` decides when they are sent, and
``link_frame`` in which form; on the other node, ``link_receiver`` passes them to its sessions. ``shared_groups``
selects the node of a Shared Subscription. ``known_routes`` has the routes for a start without NATS. ``moving`` sends
marks and single messages through links.
"""
