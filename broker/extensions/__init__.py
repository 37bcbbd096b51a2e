"""Optional parts that attach to hooks: delayed publish, traces, slow subscriptions, topic metrics.

Each one is a file. Delayed publish and slow subscriptions are loaded at the start, as configured; traces and topic
metrics attach while there are any. The server and the management API call this package."""
