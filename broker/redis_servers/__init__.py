"""One or several Redis servers, for logins and for rules: connections, the master that sentinels name, and the slots of
a cluster. Only who has set up Redis imports it: it needs the library redis."""
