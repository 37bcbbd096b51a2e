"""One or several Redis servers, for logins and for rules: connections, the master that sentinels name, and the slots of
a cluster. It needs the library redis, so it is imported only if Redis is configured."""
