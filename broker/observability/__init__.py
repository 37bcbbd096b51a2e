"""What is seen of the node: counters, gauges, alarms, the lag of the event loop, throttled log lines and ``$SYS``.

Nothing here decides anything about a message. The broker and all above it write here; the management API reads.
"""
