"""RabbitMQ: a message broker with exchanges and queues (AMQP 0-9-1).

The resource type ``bridge_rabbit`` and the action ``data_to_rabbit``."""
