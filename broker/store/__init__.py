"""The durable store of a node, assembled: open, read at start (recovery), rewrite (compaction), close.

It puts sessions back into the broker, so it is above ``core``. ``server.py`` calls it.
"""
