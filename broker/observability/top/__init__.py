"""Top lists: which clients and topics are behind the node's figures, in a fixed amount of memory.

The algorithms know no clients and no sockets. ``ThrottledLog``, ``Broker`` and ``ClientSweep`` feed them.
"""
