"""Measurements against a running node and against other brokers; ``make bench``.

The load generator is in ``tools/loadgen``.
"""
