"""Replicas: copies of a node's log on other nodes.

An *origin* is a node whose log is copied; a *follower* keeps a copy. ``records`` has the record of each origin in the
bucket ``replicas``. ``origin`` decides which followers an acknowledgement waits for, ``origin_record`` writes that
into this node's record, ``shipping`` sends the batches, and ``copies`` keeps those of other nodes. ``takeover`` runs a
lost node from its copy, and ``returning`` is the start of a node that was taken over.
"""
