"""Modules that authenticate clients, as EMQX Enterprise exports them."""

REDIS = {
    "verify": False, "type": "single", "super_cmd": "HGET mqtt_user:%u is_superuser", "ssl": False,
    "server": "redis:6379", "sentinel": "", "query_timeout": "5s", "pool_size": 8, "password_hash": "plain",
    "password": "", "keyfile": {"filename": "", "file": ""}, "database": 0, "certfile": {"filename": "", "file": ""},
    "cacertfile": {"filename": "", "file": ""}, "auto_reconnect": True, "auth_cmd": "HMGET mqtt_user:%u password",
    "acl_cmd": "HGETALL mqtt_acl:%u",
}  # fmt: skip
POSTGRESQL = {
    "verify": False, "user": "postgres", "ssl": False, "server": "postgres:5432", "query_timeout": "5s",
    "super_query": "select is_superuser from mqtt_user where username = '%u' limit 1", "pool_size": 8,
    "password_hash": "sha256", "password": "postgres", "keyfile": {"filename": "", "file": ""}, "database": "postgres",
    "certfile": {"filename": "", "file": ""}, "cacertfile": {"filename": "", "file": ""}, "auto_reconnect": True,
    "auth_query": "select password from mqtt_user where username = '%u' limit 1",
    "acl_query": "select allow, ipaddr, username, clientid, access, topic from mqtt_acl where ipaddr = '%a' or "
    "username = '%u' or username = '$all' or clientid = '%c'",
}  # fmt: skip
