"""Redis and Valkey: databases to which each row is sent as a command.

The resource types ``backend_redis_single``, ``backend_redis_sentinel`` and ``backend_redis_cluster``, and the action
``data_to_redis``."""
