"""OpenTSDB: a time series database that stores rows as data points.

The resource type ``backend_opentsdb`` and the action ``data_to_opentsdb``."""
