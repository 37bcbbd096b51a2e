"""Session State of one client (MQTT 5.0 section 4.1): subscriptions, what is in flight, what is queued.

It knows no socket, clock, log or configuration: a session reaches its client through a ``ClientWriter`` and is told the
time. ``core`` makes and ends sessions, ``channel`` drives them with the client's acknowledgements, ``routing`` finds
them.
"""
