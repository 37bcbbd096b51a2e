"""The nodes of the cluster: which of them run, who this node is, and whose messages are accepted.

``members`` follows the heartbeats and the records of bucket ``members``; ``peer`` is another node as this one knows
it. ``admission`` decides whose messages are read, ``membership_check`` whether this node may still write, and
``member_nats`` keeps a node that is not a member from doing so. Every other package uses ``Members.peers``.
"""
