"""The operators' side of the node: its command line, its configuration, the HTTP API and ``taipan-ctl``.

MQTT is not handled here but in ``broker``, whose ``Server`` is built and run by ``node``, together with the rule
engine. The console scripts and programs that embed a node call this package."""
