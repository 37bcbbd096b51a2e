"""Optional extras that attach to hooks: delayed publish, traces, slow subscriptions, topic metrics.

Each is one file, loaded and unloaded while the node runs. The server and the management API call in.
"""
