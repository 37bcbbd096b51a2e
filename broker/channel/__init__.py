"""The conversation with one client: how the Server processes each Control Packet, and how it sends PUBLISH.

``publish`` applies the server's Receive Maximum, ``session_setup`` the client's. ``outbound_writer`` applies Maximum
Packet Size and Message Expiry. ``closing`` reports why a client was refused or disconnected.

This package has no sockets: a ``Channel`` receives decoded packets and the time, answers through its
``OutboundWriter``, and asks its ``ChannelConnection`` to close. ``transport.connection`` calls it; it uses ``core``,
``access`` and the session."""
