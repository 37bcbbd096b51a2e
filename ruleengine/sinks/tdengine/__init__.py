"""TDengine: a time series database whose REST interface executes SQL statements.

The resource type ``backend_tdengine`` and the action ``data_to_tdengine``."""
