"""The nodes of the cluster: which of them run, who this node is, and whose messages are accepted.

``members`` keeps the list of nodes, lets this node join and leave, and is what every other package uses. ``heartbeats``
decides which nodes run. ``identity`` identifies this node by its disk, and ``own_record`` is its record in bucket
``members``. ``peer`` is another node as this one knows it. ``admission`` decides which nodes' messages are read, and
``membership_check`` whether this node may still write. ``member_nats`` prevents writes by a node that is not a member.
"""
