"""Sockets: listeners and what stands between them and a Connection (TLS, WebSocket, PROXY protocol, rate limits).

A slow reader is a client whose socket is full: ``connection_writer`` stops writing to it, ``slow_reader`` closes it
after a time.

No MQTT packet is read or judged here except by handing bytes to ``channel/``, and access control is not asked.
``server.py`` builds one Listener per address and gives it the function that makes a Connection.
"""
