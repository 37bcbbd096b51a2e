"""MQTT-SN 1.2 over UDP (docs/gateways/mqtt-sn.md).

``codec`` converts the messages between data and bytes. ``states`` has the states of a conversation and their order,
``topics`` the topic ids of a client, ``wills`` its Will, ``publications`` the messages from it, ``deliveries`` the
messages to it, with repetitions and the proof of its address. ``conversation`` connects these to the client and to the
broker, and ``gateway`` has the settings and the object that the node loads. Only the node calls it, as it calls the
gateways of other packages (``broker/gateway.py``)."""
