"""The control command: ``taipan-ctl``, its Unix socket and its commands.

``main`` is the client, ``socket`` the node's side. ``*_commands`` format the results of ``operations`` as text.
``taipan.management.management_server`` opens the socket in addition to the HTTP server."""
