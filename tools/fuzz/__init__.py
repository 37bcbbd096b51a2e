"""Bad bytes in great number: against the decoder in this process, or against a running node.

``python -m tools.fuzz --seconds 60`` mutates the packet table and makes bytes up; the decoder may find packets and
``MqttError`` and nothing else, and the same ones however the bytes are cut. ``--live host:port`` sends such bytes over
many connections and watches that the node goes on serving others.
"""
