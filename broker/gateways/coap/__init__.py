"""CoAP over UDP (docs/gateways/coap.md).

``codec`` has the messages as data and bytes. ``exchange`` is the message layer of one address: repetitions, tokens,
answers; ``blockwise`` cuts and joins what is larger than a datagram, ``observe`` has who is told of what. These know
nothing of MQTT, and LwM2M uses them too. ``conversation`` is what a CoAP client and the node say to each other, and
``gateway`` the settings and what the node loads."""
