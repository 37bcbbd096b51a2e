"""The control command: ``taipan-ctl``, its Unix socket and its commands.

``main`` is the thin client, ``socket`` the node's side of it, ``*_commands`` dress what ``operations`` answer as text.
``taipan.management.management_server`` opens the socket beside the HTTP server.
"""
