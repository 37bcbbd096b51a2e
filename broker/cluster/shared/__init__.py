"""Data that belongs to all nodes: each node has all of it in its own store, and a bucket decides which change is the
last one.

``retained`` has the retained messages; the broker calls it as ``Retaining.changes``. ``retained_values`` writes them
for the bucket and reads them from it, ``retained_order`` decides which change of a topic is the later one, ``settling``
asks the other nodes before a retained message is cleared, and ``unwritten`` has the changes that the bucket may not
have yet. ``rows`` has what operators store, such as users and rules; the tables call it as ``Tables.shared_rows``. Both
are a ``SharedMap``, and their encoded values are in ``values``. ``bucket_life`` identifies the bucket that a node has
read, in case NATS loses it.
"""
