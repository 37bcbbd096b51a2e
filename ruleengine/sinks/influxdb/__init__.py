"""InfluxDB: a time series database that stores rows as points.

The resource types ``backend_influxdb_http`` (InfluxDB 1) and ``backend_influxdb_http_v2`` (InfluxDB 2), and the action
``data_to_influxdb``."""
