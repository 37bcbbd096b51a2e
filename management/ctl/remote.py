"""A node reached over HTTP: its address, the application to use, and the request.

``main`` imports this module only if necessary, because it needs more of the standard library than a socket."""

import base64
import http.client
import json
import os
import ssl
import stat
import sys
import tomllib
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from .main import FRAMES_TYPE, CommandLineError, Keep, NoNodeAnswers, Refused, print_frames, shown

URL: Final = "TAIPAN_CTL_URL"
APP: Final = "TAIPAN_CTL_APP"
CAFILE: Final = "TAIPAN_CTL_CAFILE"
PROFILE: Final = "TAIPAN_CTL_PROFILE"
_PATH: Final = "/api/v4/ctl"
_KEYS: Final = ("url", "app", "app_file", "cafile")
_MAX_FILE: Final = 65_536
_MAX_ANSWER: Final = 65_536
_UNKNOWN: Final = 102
"""The code for an unknown endpoint. With ``management.error_status`` ``emqx`` its status is 200."""


class Place(NamedTuple):
    """The address of a node and the credentials for it. ``app``: ``AppID:AppSecret``. ``cafile``: empty for the
    system's authorities."""

    url: SplitResult
    app: str
    cafile: str

    @property
    def name(self) -> str:
        """Return the name for messages, always without the secret."""
        return shown(self.url.geturl())


def place_of(options: Mapping[str, str], environ: Mapping[str, str]) -> Place:
    """Return the place. Options override the environment, and the environment overrides the profile. Raises
    CommandLineError."""
    if "--url" in options and "--profile" in options:
        raise CommandLineError("option --url: not with --profile")
    if "--app" in options and "--app-file" in options:
        raise CommandLineError("option --app: not with --app-file")
    profile: dict[str, str] = {}
    if "--url" not in options:
        name = options.get("--profile") or (environ.get(PROFILE) if URL not in environ else None)
        if name is not None:
            profile = _profile(name, environ)
    url = options.get("--url") or profile.get("url") or environ.get(URL)
    if not url:
        raise CommandLineError("option --url: is missing; --profile or TAIPAN_CTL_URL can name the node instead")
    if "--app" in options:
        app = options["--app"]
    elif "--app-file" in options:
        app = _first_line(options["--app-file"])
    elif "app" in profile:
        app = profile["app"]
    elif "app_file" in profile:
        app = _first_line(profile["app_file"])
    else:
        app = environ.get(APP, "")
    app_id, colon, secret = app.partition(":")
    if not (app_id and colon and secret):
        raise CommandLineError("option --app-file: is missing; TAIPAN_CTL_APP can hold AppID:AppSecret instead")
    cafile = options.get("--cafile") or profile.get("cafile") or environ.get(CAFILE, "")
    return Place(_read_url(url), app, os.path.expanduser(cafile))


def _read_url(text: str) -> SplitResult:
    try:
        url = urlsplit(text)
        _ = url.port
    except ValueError as error:
        raise CommandLineError(f"URL {shown(text)}: {error}") from None
    if url.username is not None or url.password is not None:
        raise CommandLineError(
            "option --url: contains a name or a secret: give the application with --app-file or TAIPAN_CTL_APP"
        )
    if url.scheme not in ("http", "https") or not url.hostname or url.query or url.fragment:
        raise CommandLineError(f"URL {shown(text)}: expected https://HOST:PORT or http://HOST:PORT")
    return url._replace(path=url.path.rstrip("/"))


def profiles_file(environ: Mapping[str, str]) -> str:
    base = environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(base, "taipan", "ctl.toml")


def read_profiles(environ: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the profiles by name, none if the file does not exist. Raises CommandLineError."""
    file = profiles_file(environ)
    if not os.path.lexists(file):
        return {}
    try:
        document = tomllib.loads(_private_text(file))
    except (ValueError, RecursionError) as error:
        raise CommandLineError(f"file {shown(file)}: {error}") from None
    unknown = [key for key in document if key != "profiles"]
    found = document.get("profiles", {})
    if unknown or not isinstance(found, dict):
        raise CommandLineError(
            f"file {shown(file)}: expected tables [profiles.NAME], found {shown(', '.join(unknown))}"
        )
    for name, profile in found.items():
        where = f"file {shown(file)}: profiles.{shown(name)}"
        if not isinstance(profile, dict):
            raise CommandLineError(f"{where}: expected a table")
        for key, value in profile.items():
            if key not in _KEYS:
                raise CommandLineError(f"{where}.{shown(key)}: unknown key; expected one of {', '.join(_KEYS)}")
            if not isinstance(value, str) or not value:
                raise CommandLineError(f"{where}.{key}: expected a string")
        if "url" not in profile:
            raise CommandLineError(f"{where}.url: is missing")
        if "app" in profile and "app_file" in profile:
            raise CommandLineError(f"{where}: give app or app_file, not both")
    return found


def _profile(name: str, environ: Mapping[str, str]) -> dict[str, str]:
    profiles = read_profiles(environ)
    if name not in profiles:
        there = ", ".join(map(shown, sorted(profiles))) or "none"
        raise CommandLineError(f"profile {shown(name)}: not found in {shown(profiles_file(environ))}; there: {there}")
    return profiles[name]


def _first_line(file: str) -> str:
    return _private_text(os.path.expanduser(file)).partition("\n")[0].rstrip("\r")


def _private_text(file: str) -> str:
    """Return the text of a file with secrets, which no other user may read. Raises CommandLineError."""
    try:
        with open(file, "rb") as opened:
            found = os.fstat(opened.fileno())
            data = opened.read(_MAX_FILE)
    except OSError as error:
        raise CommandLineError(f"file {shown(os.path.abspath(file))}: {error.strerror or error}") from None
    if stat.S_ISREG(found.st_mode) and found.st_mode & 0o077:
        mode = f"{stat.S_IMODE(found.st_mode):04o}"
        raise CommandLineError(
            f"file {shown(os.path.abspath(file))}: contains secrets, and others may access it (mode {mode}): chmod 600"
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise CommandLineError(f"file {shown(os.path.abspath(file))}: is not UTF-8") from None


def ask(place: Place, request: Mapping[str, object], timeout: float, keep: Keep, put: Keep) -> int:
    """Send the request and print the answer. Return the exit status that the node reports.

    Raises Refused, NoNodeAnswers, CommandLineError.
    """
    connection = _connection(place, timeout)
    credentials = base64.b64encode(place.app.encode()).decode("ascii")
    headers = {"Authorization": f"Basic {credentials}", "Content-Type": "application/json"}
    try:
        try:
            connection.request("POST", place.url.path + _PATH, json.dumps(request).encode("ascii"), headers)
        except BrokenPipeError:
            raise NoNodeAnswers(
                f"node at {place.name}: closed the connection before it had received the command"
            ) from None
        response = connection.getresponse()
        if response.status == 200 and response.getheader("Content-Type") == FRAMES_TYPE:
            status = print_frames(lambda: response.read1(65_536), keep, put)
            if status is None:
                raise NoNodeAnswers(f"node at {place.name}: closed the connection before it had finished")
            return status
        raise _refusal(place, response)
    except TimeoutError:
        raise NoNodeAnswers(f"node at {place.name}: does not respond; --timeout waits longer") from None
    except ssl.SSLCertVerificationError as error:
        why = error.verify_message or "unknown"
        raise NoNodeAnswers(
            f"certificate of {place.name}: is not trusted: {why}; --cafile names the authority that signed it"
        ) from None
    except BrokenPipeError:
        raise  # end of the output
    except http.client.IncompleteRead:
        raise NoNodeAnswers(f"node at {place.name}: closed the connection before it had finished") from None
    except http.client.HTTPException as error:
        raise NoNodeAnswers(
            f"node at {place.name}: does not answer in HTTP: {shown(str(error) or type(error).__name__)}"
        ) from None
    except OSError as error:
        raise NoNodeAnswers(f"node at {place.name}: cannot be reached: {error.strerror or error}") from None
    finally:
        sys.stdout.flush()
        connection.close()


def _connection(place: Place, timeout: float) -> http.client.HTTPConnection:
    host = place.url.hostname or ""
    if place.url.scheme == "http":
        return http.client.HTTPConnection(host, place.url.port, timeout=timeout)
    try:
        context = ssl.create_default_context(cafile=place.cafile or None)
    except OSError as error:
        raise CommandLineError(f"file {shown(os.path.abspath(place.cafile))}: {error.strerror or error}") from None
    return http.client.HTTPSConnection(host, place.url.port, timeout=timeout, context=context)


def _refusal(place: Place, response: http.client.HTTPResponse) -> Exception:
    """Return the error for an answer without frames."""
    try:
        body = json.loads(response.read(_MAX_ANSWER))
        code, message = int(body["code"]), str(body["message"])
    except (ValueError, TypeError, KeyError, RecursionError):
        code, message = 0, ""
    app_id = shown(place.app.partition(":")[0])
    if response.status in (401, 403):
        return Refused(
            code, f"application {app_id}: is rejected by the node at {place.name}: {shown(message) or response.reason}"
        )
    if response.status == 404 or code == _UNKNOWN:
        return NoNodeAnswers(
            f"node at {place.name}: has no POST {_PATH}: it is older than this taipan-ctl, or the URL is not"
            " its HTTP API"
        )
    if message:
        return Refused(code, f"node at {place.name}: refuses: {shown(message)}")
    return NoNodeAnswers(f"node at {place.name}: answers {response.status} {shown(response.reason)}: not a node")


def profiles(as_json: bool) -> int:
    """Run ``taipan-ctl profiles``: list the profiles without their secrets."""
    rows = [
        {
            "name": name,
            "url": profile["url"],
            "app_id": profile["app"].partition(":")[0] if "app" in profile else None,
            "app_file": profile.get("app_file"),
            "cafile": profile.get("cafile"),
        }
        for name, profile in sorted(read_profiles(os.environ).items())
    ]
    if as_json:
        print(json.dumps(rows))
    for row in () if as_json else rows:
        facts = ", ".join(f"{key}={shown(row[key] or '-')}" for key in ("url", "app_id", "app_file", "cafile"))
        print(f"Profile({shown(row['name'] or '')}, {facts})")
    return 0
