"""The operators' side of the node: its command line and its configuration, later the HTTP API and the control command.

Nothing of MQTT lives here: that is ``broker``, whose ``Server`` is built and run by ``node``. Nobody calls in but the
console script and, one day, the operators' doors.
"""
