"""The configuration: read from file, environment and command line, checked, and turned into settings.

``config.load`` and ``config.read`` return all settings of a node, or raise ConfigError with a line for each mistake.
``validation`` also checks the bodies and queries of the HTTP API. Nothing here starts a node.
Its callers are the commands of ``taipan``, the management server and programs that embed a node.
"""
