"""Optional extras that attach to hooks: delayed publish, traces, slow subscriptions, topic metrics.

Each is one file. Delayed publish and slow subscriptions are loaded at the start, by the configuration; traces and topic
metrics attach while there are any. The server and the management API call in.
"""
