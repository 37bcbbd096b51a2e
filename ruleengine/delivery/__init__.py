"""What stands between an action and a network: the buffer on disk, retries, the circuit breaker, dead letters.

It knows no protocol. Resources send from it, and actions put rows in.
"""
