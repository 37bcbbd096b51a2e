"""What stands between an action and a network: the buffer on disk, retries, the circuit breaker, dead letters.

``buffer`` retries what failed, of web hooks, MQTT bridges and any other resource. Nothing here depends on a protocol.
Actions put rows in, resources take them out.
"""
