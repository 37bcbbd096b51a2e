"""Sockets: listeners, and the layers between them and a Connection (TLS, WebSocket, PROXY protocol, rate limits).

A slow reader is a client whose socket is full: ``connection_writer`` stops writing to it, and ``slow_reader`` closes it
after some time.

MQTT packets are only read or checked here by passing bytes to ``channel/``, and access control is not called.
``server.py`` creates one Listener per address and passes it the function that creates a Connection."""
