"""What tests stand on: a peer that speaks raw MQTT, nodes to speak to, and an independent reading of the wire.

No test lives here and no broker code imports it. Scenarios, interoperability and management tests call in.
"""
