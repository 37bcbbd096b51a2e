"""MySQL and MariaDB: databases that store rows.

The resource type ``backend_mysql`` and the action ``data_to_mysql``."""
