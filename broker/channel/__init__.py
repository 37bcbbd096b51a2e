"""One client's conversation: what the Server does with each Control Packet, and how PUBLISH goes out.

``publish`` keeps the server's Receive Maximum, ``session_setup`` takes the client's. ``outbound_writer`` keeps Maximum
Packet Size and Message Expiry. ``closing`` says why a client was refused or disconnected.

No sockets here: a ``Channel`` is given decoded packets and the time, answers through its ``OutboundWriter``, and asks
its ``ChannelConnection`` to close. ``transport.connection`` drives it; below it are ``core``, ``access`` and the
session.
"""
