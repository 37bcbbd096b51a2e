"""The plugin that sends events to providers of EMQX's exhook protocol: ``[exhook]``, without rules.

grpcio and protobuf are imported only if a provider is configured. As a source of access, a provider decides whether a
client may log in, publish and subscribe: ``broker/access/exhook``.
"""
