"""Observability of the node: counters, gauges, alarms, event loop lag, throttled log lines and ``$SYS``.

Nothing here makes a decision about a message. The broker and the packages above it write here; the management API
reads.
"""
