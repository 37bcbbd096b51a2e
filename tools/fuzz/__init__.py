"""Send large amounts of invalid input to the decoder in this process, or to a running node.

``python -m tools.fuzz --seconds 60`` mutates the packet table and generates bytes. The decoder may only return packets
and ``MqttError``, and must return the same ones however the bytes are split. ``--live host:port`` sends such bytes over
many connections and checks that the node continues to serve other clients."""
