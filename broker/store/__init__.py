"""The durable store of a node, assembled: opened, read at start (recovery), written anew (compaction), closed.

It puts sessions back into the broker, so it lies above ``core``. ``server.py`` calls in.
"""
