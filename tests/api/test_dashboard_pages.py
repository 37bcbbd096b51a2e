"""The files of the dashboard's page: what is served, how it may be kept, and that nothing else ever is."""

import asyncio
import gzip
import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from yarl import URL

from tests.support.api import ManagedNode, Reply, managed_node
from tests.support.patience import patience

pytestmark = pytest.mark.asyncio

INDEX = b'<!doctype html><base href="/"><script type="module" src="assets/index-B1a2C3d4.js"></script>'
SCRIPT = b"export const a = 1\n" * 20
ASSET = "/assets/index-B1a2C3d4.js"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A built page, beside a file that is none of it."""
    built = tmp_path / "built"
    (built / "assets").mkdir(parents=True)
    (built / "index.html").write_bytes(INDEX)
    script = built / "assets" / "index-B1a2C3d4.js"
    script.write_bytes(SCRIPT)
    Path(f"{script}.gz").write_bytes(gzip.compress(SCRIPT))
    Path(f"{script}.br").write_bytes(b"as if by brotli")
    (built / "favicon.svg").write_bytes(b"<svg/>")
    (tmp_path / "secret.txt").write_text("secret")
    (built / "link.txt").symlink_to(tmp_path / "secret.txt")
    (built / "outside").symlink_to(tmp_path)
    (built / ".hidden").write_text("secret")
    return built


@pytest_asyncio.fixture
async def node(directory: Path) -> AsyncIterator[ManagedNode]:
    async with managed_node(dashboard={"static_dir": str(directory), "on_management": True}) as node:
        yield node


async def ask(url: str, path: str, method: str = "GET", **headers: str) -> Reply:
    sent = {"Accept-Encoding": "identity", **{name.replace("_", "-"): value for name, value in headers.items()}}
    async with (
        aiohttp.ClientSession(auto_decompress=False) as session,
        session.request(method, URL(url + path, encoded=True), headers=sent, allow_redirects=False) as response,
    ):
        return Reply(response.status, response.headers, await response.read())


async def raw(node: ManagedNode, target: bytes) -> bytes:
    """The answer to a request line that no library would send."""
    url = URL(node.management.dashboard_url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(b"GET " + target + b" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    answer = await asyncio.wait_for(reader.read(), patience(40))
    writer.close()
    return answer


async def test_the_index_and_deep_links(node: ManagedNode) -> None:
    url = node.management.dashboard_url
    for path in ("/", "", "/index.html", "/clients", "/clients/a%2Fb%20%C3%A4", "/rules/rule:1?tab=test"):
        reply = await ask(url, path)
        assert (reply.status, reply.octets) == (200, INDEX), path
        assert reply.headers["Content-Type"] == "text/html; charset=utf-8"
        assert reply.headers["Cache-Control"] == "no-cache"
    # A client identifier with a dot, as a browser asks for the page of it.
    assert (await ask(url, "/clients/pump.7", Accept="text/html,*/*;q=0.8")).octets == INDEX
    missing = await ask(url, "/assets/gone-B1a2C3d4.js")
    assert missing.status == 404 and missing.json["code"] == 102


async def test_hashed_files_are_kept_for_ever_and_others_asked_for_again(node: ManagedNode) -> None:
    url = node.management.dashboard_url
    script = await ask(url, ASSET)
    assert script.octets == SCRIPT and script.headers["Content-Type"] == "text/javascript; charset=utf-8"
    assert script.headers["Cache-Control"] == "public, max-age=31536000, immutable"
    icon = await ask(url, "/favicon.svg")
    assert (icon.headers["Cache-Control"], icon.headers["Content-Type"]) == ("no-cache", "image/svg+xml")
    again = await ask(url, "/favicon.svg", If_None_Match=f'"other", W/{icon.headers["ETag"]}')
    assert (again.status, again.octets, again.headers["ETag"]) == (304, b"", icon.headers["ETag"])
    assert (await ask(url, "/favicon.svg", If_None_Match='"other"')).status == 200
    head = await ask(url, ASSET, "HEAD")
    assert (head.status, head.octets, head.headers["Content-Length"]) == (200, b"", str(len(SCRIPT)))


ENCODINGS = {
    "br, gzip": "br",
    "gzip, deflate, br;q=0.5": "br",
    "gzip": "gzip",
    "br;q=0, gzip": "gzip",
    "*": "br",
    "br;q=0.0, gzip;q=0": "",
    "identity": "",
    "": "",
}


@pytest.mark.parametrize("accepted", ENCODINGS)
async def test_compressed_files_by_accept_encoding(node: ManagedNode, accepted: str) -> None:
    reply = await ask(node.management.dashboard_url, ASSET, Accept_Encoding=accepted)
    wanted = ENCODINGS[accepted]
    assert reply.headers.get("Content-Encoding", "") == wanted and reply.headers["Vary"] == "Accept-Encoding"
    content = {"br": b"as if by brotli", "gzip": SCRIPT, "": SCRIPT}[wanted]
    assert (gzip.decompress(reply.octets) if wanted == "gzip" else reply.octets) == content
    plain = await ask(node.management.dashboard_url, ASSET, Accept_Encoding="identity")
    assert (reply.headers["ETag"] == plain.headers["ETag"]) is (not wanted)


async def test_what_a_browser_may_do_with_the_page(node: ManagedNode) -> None:
    headers = (await ask(node.management.dashboard_url, "/", Host="broker.example:18083")).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
    [port] = [each.port for each in node.server.listeners if each.type == "ws"]
    assert policy["default-src"] == "'self'"
    assert policy["script-src"] == "'self' 'unsafe-eval'" and policy["style-src"] == "'self' 'unsafe-inline'"
    assert policy["connect-src"] == f"'self' ws://broker.example:{port}"
    assert (policy["frame-ancestors"], policy["object-src"]) == ("'none'", "'none'")
    assert headers["X-Frame-Options"] == "DENY" and headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    for hostile in ("[::1]:18083", "a; script-src *", "'unsafe-inline'", "a b"):
        policy_of = (await ask(node.management.dashboard_url, "/", Host=hostile)).headers["Content-Security-Policy"]
        assert f"connect-src 'self' ws://*:{port};" in policy_of and "script-src *" not in policy_of


async def test_a_directory_of_others_may_run_code_from_strings_unless_it_is_told_not_to(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "taipan.management")
    cases: list[tuple[dict[str, Any], bool]] = [
        ({"static_dir": str(directory)}, True),
        ({"static_dir": str(directory), "static_dir_eval": False}, False),
        ({}, False),
        ({"static_dir_eval": True}, False),
    ]
    for settings, allowed in cases:
        caplog.clear()
        async with managed_node(dashboard={**settings, "on_management": True}) as node:
            for url in (node.management.dashboard_url, node.management.url + "/dashboard"):
                policy = (await ask(url, "/")).headers["Content-Security-Policy"]
                assert ("script-src 'self' 'unsafe-eval';" in policy) is allowed, settings
                assert ("script-src 'self';" in policy) is not allowed, settings
        said = [each.getMessage() for each in caplog.records if "dashboard_eval_allowed" in each.getMessage()]
        assert len(said) == allowed, settings
        assert all("dashboard.static_dir_eval" in each for each in said)


TRAVERSAL = [
    b"/../secret.txt", b"/..%2fsecret.txt", b"/%2e%2e/secret.txt", b"/assets/../../secret.txt", b"/%2e%2e%2fsecret.txt",
    b"/assets/..%5c..%5csecret.txt", b"//secret.txt", b"/link.txt", b"/outside/secret.txt", b"/.hidden",
    b"/assets/%00.js", b"/secret.txt%00.js", b"/%ff.js", b"/%zz.js", b"http://a/../secret.txt", b"/./.hidden",
]  # fmt: skip


@pytest.mark.parametrize("target", TRAVERSAL)
async def test_nothing_outside_of_the_directory_is_served(node: ManagedNode, target: bytes) -> None:
    answer = await raw(node, target)
    assert b"secret" not in answer.partition(b"\r\n\r\n")[2].replace(b"secret.txt", b"")
    assert answer.startswith(b"HTTP/1.1 4") or INDEX in answer


async def test_under_the_management_port_it_has_its_own_base(node: ManagedNode) -> None:
    url = node.management.url
    for path in ("/dashboard", "/dashboard/", "/dashboard/clients/c1"):
        reply = await ask(url, path)
        assert reply.octets == INDEX.replace(b'href="/"', b'href="/dashboard/"'), path
    assert (await ask(url, "/dashboard" + ASSET)).octets == SCRIPT
    assert (await ask(url, "/clients")).status == 404
    assert (await ask(url, ASSET)).status == 404


async def test_a_new_build_is_served_without_a_restart(node: ManagedNode, directory: Path) -> None:
    (directory / "assets" / "index-E5f6G7h8.js").write_bytes(b"new")
    (directory / "index.html").write_bytes(INDEX + b"<!-- new -->")
    assert (await ask(node.management.dashboard_url, "/")).octets.endswith(b"<!-- new -->")
    assert (await ask(node.management.dashboard_url, "/assets/index-E5f6G7h8.js")).octets == b"new"


async def test_without_files_a_page_says_how_to_build_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "taipan.management")
    async with managed_node(dashboard={"static_dir": str(tmp_path / "<none>")}) as node:
        reply = await ask(node.management.dashboard_url, "/")
        assert reply.status == 200 and "make dashboard" in reply.text and "&lt;none&gt;" in reply.text
        assert "<script" not in reply.text and "Content-Security-Policy" in reply.headers
        assert (await ask(node.management.dashboard_url, "/api/v4/brokers")).status == 401
        said = [each for each in caplog.records if "dashboard_not_built" in each.getMessage()]
        assert len(said) == 1
        (tmp_path / "<none>").mkdir()
        (tmp_path / "<none>" / "index.html").write_bytes(INDEX)
        assert (await ask(node.management.dashboard_url, "/")).octets == INDEX


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
async def test_files_are_read_and_nothing_else(node: ManagedNode, method: str) -> None:
    assert (await ask(node.management.dashboard_url, "/", method)).status == 404


async def test_a_host_name_that_is_not_ours_sees_nothing(directory: Path) -> None:
    names: dict[str, Any] = {"host_names": ["broker.example"]}
    async with managed_node(management=names, dashboard={"static_dir": str(directory)}) as node:
        assert (await ask(node.management.dashboard_url, "/", Host="broker.example")).octets == INDEX
        assert (await ask(node.management.dashboard_url, "/", Host="rebound.example")).status == 400


async def test_it_is_a_listener_with_emqx_s_name(node: ManagedNode) -> None:
    rows = (await node.api.get("/listeners")).data[0]["listeners"]
    [row] = [each for each in rows if each["protocol"] == "http:dashboard"]
    port = re.sub(r".*:", "", node.management.dashboard_url)
    assert (row["listen_on"], row["max_conns"], row["shutdown_count"]) == (f"127.0.0.1:{port}", 512, [])
    refused = await node.api.put("/listeners/http:dashboard/restart")
    assert refused.status == 400 and "http_listener_restart_unsupported" in refused.json["message"]
