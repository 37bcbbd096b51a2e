"""What belongs to all nodes: each holds all of it in its own store, and a bucket decides what is last.

``retained`` has the retained messages; the broker calls it as ``Retaining.changes``. ``rows`` has what operators store,
such as users and rules; the tables call it as ``Tables.shared_rows``. Both are a ``SharedMap``. ``settling`` asks the
other nodes before a retained message is cleared. ``bucket_life`` identifies the bucket that a node has read, for the
case that NATS loses it.
"""
