"""One client's conversation: what the Server does with each Control Packet, and how PUBLISH goes out.

No sockets here: a ``Channel`` is given decoded packets and the time, answers through its ``OutboundWriter``, and asks
its ``Link`` to close. ``transport.connection`` drives it; below it are ``core``, ``access`` and the session.
"""
