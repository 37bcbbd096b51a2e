"""Alarm targets: the web hooks, email addresses and topics to which a node sends its alarms.

``outbox`` decides what is sent when and does no input or output; ``senders`` and ``mail`` send; ``notifier`` connects
both with the node's alarms. The package does not know the store or the HTTP API."""
