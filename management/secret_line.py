"""The form in which a first secret is told to who started a node or made its configuration."""


def secret_line(where: str, name: str, secret: str) -> str:
    """``where``: at what the two are good. One line, which is written once."""
    return f"{where} user {name} password {secret} (shown this once)"
