"""The parts between an action and a network: the buffer on disk, retries, the circuit breaker, dead letters.

``buffer`` retries failed rows of web hooks, MQTT bridges and all other resources. Nothing here depends on a protocol.
Actions add rows, resources remove them."""
