"""Session State of one client (MQTT 5.0 section 4.1): subscriptions, what is in flight, what is queued.

``Session`` keeps the window: how many messages of QoS 1 and 2 the client's Receive Maximum and ``max_inflight`` let be
in flight. What does not fit waits in its ``MessageQueue``. ``Resend`` sends again after a reconnect, ``Replay`` sends
retained messages after a SUBSCRIBE. ``inbound_qos2`` keeps the Packet Identifiers that the client uses.

It knows no socket, clock or log, and no configuration but the type ``ZoneSettings``: a session reaches its client
through a ``ClientWriter`` and is told the time. ``core`` makes and ends sessions, ``channel`` drives them with the
client's acknowledgements, ``routing`` finds them.
"""
