"""The operators' side of the node: its command line, its configuration, the HTTP API and ``taipan-ctl``.

Nothing of MQTT lives here: that is ``broker``, whose ``Server`` is built and run by ``node``, beside the rule engine.
Its callers are the console scripts and programs that embed a node.
"""
