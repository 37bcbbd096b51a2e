"""The line that shows a generated secret to the operator, once."""


def secret_line(where: str, name: str, secret: str) -> str:
    """Return the line. ``where``: the service to log in to."""
    return f"{where} user {name} password {secret} (shown this once)"
