"""Session State of one client (MQTT 5.0 section 4.1): subscriptions, messages in flight, queued messages.

``Session`` keeps the window: how many QoS 1 and 2 messages the client's Receive Maximum and ``max_inflight`` allow in
flight. Further messages wait in its ``MessageQueue``. ``Resend`` sends messages again after a reconnect, ``Replay``
sends retained messages after a SUBSCRIBE. ``inbound_qos2`` keeps the Packet Identifiers that the client uses.

The package has no sockets, clocks or logs, and no configuration except the type ``ZoneSettings``: a session sends to
its client through a ``ClientWriter`` and receives the time as an argument. ``core`` creates and ends sessions,
``channel`` passes the client's acknowledgements to them, ``routing`` finds them."""
