"""The connection to NATS.

``interface`` is what all other packages use; ``client`` implements it, and the tests and the simulation have an
implementation of their own. Internally, ``client`` uses one ``connection`` after another, ``protocol`` reads and writes
the socket, ``api`` sends requests to JetStream, and ``buckets`` and ``watch`` handle its keys. ``server`` creates the
client.
"""
