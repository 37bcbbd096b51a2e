"""OpenIdRefused: why a login by OpenID Connect failed."""

from typing import Final, Literal

OpenIdReason = Literal["state", "denied", "provider", "token", "user", "role", "busy"]

SETTING: Final = "dashboard.openid"


class OpenIdRefused(Exception):
    """``reason``: what the page explains; ``dashboard_openid_<reason>`` is its counter. ``detail``: text for the log,
    without secrets. ``setting``: the setting to check."""

    def __init__(self, reason: OpenIdReason, detail: str, setting: str = "") -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: OpenIdReason = reason
        self.detail = detail
        self.setting = f"{SETTING}.{setting}" if setting else SETTING
