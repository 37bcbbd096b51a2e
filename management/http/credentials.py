"""Credentials: HTTP Basic, with AppID and AppSecret and slow answers to guesses."""

import base64
import binascii
import logging
from collections import OrderedDict
from functools import partial
from typing import Final

from aiohttp import web

from taipan.broker.access.guesses import address_group
from taipan.broker.loop.clock import Clock
from taipan.broker.observability.metrics import Reasons

from ..operations.apps import Apps
from ..operations.caller import ADMINISTRATOR, APPLICATION, NOT_ALLOWED, Caller
from ..operations.refusal import NO_CREDENTIALS, WRONG_CREDENTIALS, Refusal

logger = logging.getLogger(__name__)

FREE_FAILURES: Final = 10
"""Number of wrong credentials from one address, or for one application, after which answers to wrong ones are
delayed."""
MAX_WAIT: Final = 5.0
"""Maximum delay of such an answer in seconds: shorter than the timeout of most programs."""
FORGET_AFTER: Final = 600.0
"""Seconds without a failure after which earlier failures are forgotten."""
_MAX_REMEMBERED: Final = 10_000
_MAX_APP_ID_LENGTH: Final = 256


def basic_of(request: web.Request, wanted: str) -> tuple[str, str]:
    """Return name and secret of HTTP Basic. Raises Refusal 104 with the message ``wanted`` if there are none."""
    scheme, _, encoded = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "basic" or not encoded.strip():
        raise Refusal(NO_CREDENTIALS, wanted)
    try:
        name, _, secret = base64.b64decode(encoded.strip(), validate=True).decode("utf-8").partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise Refusal(NO_CREDENTIALS, f"the credentials are not Base64 of UTF-8: {wanted}") from None
    if not name and not secret:
        raise Refusal(NO_CREDENTIALS, f"both are empty: {wanted}")
    return name, secret


class WrongCredentials(Refusal):
    """The credentials are wrong. ``wait``: seconds before the answer is sent."""

    def __init__(self, wait: float) -> None:
        super().__init__(WRONG_CREDENTIALS, "wrong AppID or AppSecret")
        self.wait = wait


class CredentialsCheck:
    """Checks which application may use the API. A node has one.

    Correct credentials are answered immediately, whatever other callers have guessed before."""

    has_login: Final = False

    def __init__(self, apps: Apps, clock: Clock, refusals: Reasons) -> None:
        self._apps = apps
        self._clock = clock
        self._refusals = refusals
        self._of_address = _Failures()
        self._of_app = _Failures()

    def check(self, request: web.Request) -> Caller:
        """Return the application. Raises Refusal 104 if credentials are missing, WrongCredentials if they are wrong."""
        app_id, secret = basic_of(request, "HTTP Basic credentials are required: AppID and AppSecret")
        address = request.remote or ""
        app = self._apps.check(app_id, secret, address)
        if app is None:
            raise WrongCredentials(self._failed(address_group(request.remote or ""), app_id[:_MAX_APP_ID_LENGTH]))
        scopes = frozenset(app.scopes)
        ended = partial(self._ended, app_id, secret, scopes)
        return Caller(APPLICATION, app_id, ADMINISTRATOR, address, ended, scopes=scopes)

    def _ended(self, app_id: str, secret: str, scopes: frozenset[str]) -> str:
        """Return why an application with correct credentials no longer has access. This does not count as a wrong
        password."""
        try:
            app = self._apps.check(app_id, secret)
            return "" if app is not None and frozenset(app.scopes) == scopes else NOT_ALLOWED
        except Refusal:
            return NOT_ALLOWED

    def _failed(self, address: str, app_id: str) -> float:
        """Count a failure; return the delay of its answer in seconds."""
        now = self._clock.now()
        count = self._of_address.add(address, now)
        for_app = self._of_app.add(app_id, now)
        self._refusals.add("api_credentials")
        if count <= FREE_FAILURES or count % 100 == 0:
            logger.warning("api_credentials_wrong address=%s app_id=%s failures=%s", address, app_id, count)
        over = max(count, for_app) - FREE_FAILURES
        return min(MAX_WAIT, 2.0 ** min(over, 10)) if over >= 0 else 0.0


class _Failures:
    """The number of failures of each of the latest ``_MAX_REMEMBERED`` addresses or applications."""

    def __init__(self) -> None:
        # -> (failures, time of the last one); the least recent first
        self._counts: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def add(self, who: str, now: float) -> int:
        """Add a failure; return the number of failures without a pause of ``FORGET_AFTER`` seconds."""
        count, last = self._counts.pop(who, (0, 0.0))
        count = 1 if now - last > FORGET_AFTER else count + 1
        self._counts[who] = (count, now)
        if len(self._counts) > _MAX_REMEMBERED:
            self._counts.popitem(last=False)
        return count
