"""The connection to NATS.

``interface`` is what all other packages use; ``client`` implements it, and the tests and the simulation have an
implementation of their own. Inside: ``client`` over successive ``connection``, ``protocol`` on the socket, ``api`` for
requests to JetStream, ``buckets`` and ``watch`` for its keys. ``server`` creates the client.
"""
