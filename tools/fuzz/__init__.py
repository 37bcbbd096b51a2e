"""Invalid input in great quantity, against the decoder in this process or against a running node.

``python -m tools.fuzz --seconds 60`` mutates the packet table and generates bytes; the decoder may return packets and
``MqttError`` and nothing else, and the same ones however the bytes are split. ``--live host:port`` sends such bytes
over many connections and checks that the node continues to serve others.
"""
