"""The web hook plugin of EMQX: events of clients, sessions and messages as requests to an HTTP server.

It is not an action of rules: the configuration lists the events, and no event is sent twice or kept on disk."""
