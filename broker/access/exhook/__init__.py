"""The source that asks a provider of EMQX's exhook protocol: ``[access.exhook]``.

The ruleengine's plugin uses the same client for everything else that providers receive. grpcio and protobuf are
imported only if a table names a provider.
"""
