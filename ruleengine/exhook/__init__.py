"""The plugin that sends events to providers of EMQX's exhook protocol: ``[exhook]``, without rules.

grpcio and protobuf are imported only if a provider is configured. Whether a client may log in, publish and subscribe, a
provider decides as a source of access: ``broker/access/exhook``.
"""
