"""The resource types that are tested with real servers, by the module that does it."""

from typing import Final

SYSTEMS: Final = {
    "backend_pgsql": "test_postgresql.py",
    "backend_timescale": "test_postgresql.py",
    "timescaledb": "test_postgresql.py",
    "backend_matrix": "test_postgresql.py",
    "backend_mysql": "test_mysql.py",
    "bridge_rabbit": "test_rabbitmq.py",
    "backend_redis_single": "test_redis.py",
    "backend_redis_sentinel": "test_redis.py",
    "backend_redis_cluster": "test_redis.py",
    "bridge_kafka": "test_kafka.py",
    "kafka_consumer": "test_kafka_consumer.py",
}
