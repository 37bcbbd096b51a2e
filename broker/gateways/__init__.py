"""The gateways that Taipan ships, each in a folder of its own. No other package imports them: a listener names its
type, for which ``pyproject.toml`` has an entry point of ``taipan.gateways``."""
