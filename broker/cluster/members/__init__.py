"""The nodes of the cluster: which of them run, who this node is, and whose messages are accepted.

``members`` keeps the list of nodes, lets this node join and leave, and is what every other package uses. ``heartbeats``
decides which nodes run. ``identity`` is who this node is by its disk, and ``own_record`` its record in bucket
``members``; ``peer`` is another node as this one knows it. ``admission`` decides whose messages are read,
``membership_check`` whether this node may still write, and ``member_nats`` keeps a node that is not a member from doing
so.
"""
