"""What the pages on clusters, balancers, certificates, the log and Prometheus have their reader write, as it stands."""

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography import x509

from tests.support.absent import reason
from tests.support.api import ApiClient, ManagedNode, managed_node
from tests.support.certificates import Certificates
from tests.support.nats_server import nats_server_program
from tests.support.node import NO_DASHBOARD, NodeProcess, free_port
from tests.support.patience import patience
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
CONNECT = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01c"
CONNACK = b"\x20\x02\x00\x00"


def block(page: str, language: str, has: str = "") -> str:
    """The one block of this language on a page, in which this stands."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    (found,) = [each for each in re.findall(rf"(?ms)^```{language}\n(.*?)^```$", text) if has in each]
    return str(found)


def wanted(program: str) -> str:
    found = shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin")
    if found is None:
        pytest.skip(reason(program))
    return found


@contextlib.asynccontextmanager
async def running(*words: str, port: int, host: str = "127.0.0.1") -> AsyncIterator[None]:
    """A program, from when it accepts at this address."""
    process = await asyncio.create_subprocess_exec(*words, stderr=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(patience(40)):
            while True:
                try:
                    _, writer = await asyncio.open_connection(host, port)
                except OSError:
                    assert process.returncode is None, await process.stderr.read() if process.stderr else b""
                    await asyncio.sleep(0.02)
                else:
                    writer.close()
                    break
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


async def connected_through(node: ManagedNode, port: int, tls: ssl.SSLContext | None = None) -> bool:
    """Whether the node knows a client that comes by this port by its own address. A balancer that thinks that no node
    is up yet closes the connection: it is asked again."""
    async with asyncio.timeout(patience(40)):
        while True:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=tls, server_hostname="localhost" if tls else None
            )
            writer.write(CONNECT)
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                assert await reader.readexactly(4) == CONNACK
                break
            writer.close()
            await asyncio.sleep(0.05)
    session = node.server.broker.sessions.get("c")
    assert session is not None
    known = (session.client.peer_host, session.client.peer_port)
    own = writer.get_extra_info("sockname")
    writer.close()
    await node.settled(0)
    return bool(known == own)


def behind(node: ManagedNode, text: str, *ports: tuple[str, int]) -> str:
    """The configuration of a balancer with addresses of here. The second node of the page is not there, but the
    balancer is told that it serves: so it is in the first seconds after one has stopped."""
    listener = node.server.listeners[0].port
    management = node.management.url.rpartition(":")[2]
    for old, new in (
        ("10.0.0.21:1883", f"127.0.0.1:{listener}"), ("10.0.0.22:1883", f"127.0.0.1:{free_port()}"),
        ("port 8081", f"port {management}"), *((old, str(port)) for old, port in ports),
    ):  # fmt: skip
        assert old in text
        text = text.replace(old, new)
    return text.replace("10.0.0.23:1883", f"127.0.0.1:{listener}")


async def all_get_in(port: int) -> None:
    """Each at its first attempt, and soon, whichever node the balancer tries first."""
    for _ in range(6):
        async with asyncio.timeout(2.5):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(CONNECT)
            assert await reader.readexactly(4) == CONNACK
            writer.close()


ANYBODY = {"allow_anonymous": True}
PROXY = [{"type": "tcp", "proxy_protocol": True}]


# As Debian has it in haproxy.cfg, below which the block is put.
OF_DEBIAN = """global
	log /dev/log	local0
	log /dev/log	local1 notice

defaults
	log	global
	mode	http
	option	httplog
	option	dontlognull
        timeout connect 5000
        timeout client  50000
        timeout server  50000
"""


def taken_below_debians(haproxy: str, text: str, file: Path) -> None:
    """The file is written; it has nothing that HAProxy warns of."""
    file.write_text(OF_DEBIAN + text)
    said = subprocess.run([haproxy, "-c", "-f", str(file)], capture_output=True, text=True, check=True)
    assert "WARNING" not in said.stdout + said.stderr


@pytest.mark.asyncio
async def test_haproxy(certificates: Certificates, tmp_path: Path) -> None:
    haproxy = wanted("haproxy")
    certfile, keyfile = certificates.issue("localhost")
    both = tmp_path / "mqtt.pem"
    both.write_text(Path(certfile).read_text() + Path(keyfile).read_text())
    plain, tls = free_port(), free_port()
    async with managed_node(zone=ANYBODY, listeners=PROXY) as node:
        text = behind(node, block("behind-a-load-balancer.md", "haproxy"))
        text = text.replace("bind :1883", f"bind 127.0.0.1:{plain}").replace("bind :8883", f"bind 127.0.0.1:{tls}")
        file = tmp_path / "haproxy.cfg"
        taken_below_debians(haproxy, text.replace("/etc/haproxy/mqtt.pem", str(both)), file)
        async with running(haproxy, "-db", "-f", str(file), port=plain):
            assert await connected_through(node, plain)
            assert await connected_through(node, tls, ssl.create_default_context(cafile=certificates.ca))
            await all_get_in(plain)


@pytest.mark.asyncio
async def test_haproxy_before_a_cluster(tmp_path: Path) -> None:
    haproxy, port = wanted("haproxy"), free_port()
    async with managed_node(zone=ANYBODY, listeners=PROXY) as node:
        text = behind(node, block("run-a-cluster.md", "haproxy")).replace("bind :1883", f"bind 127.0.0.1:{port}")
        file = tmp_path / "haproxy.cfg"
        taken_below_debians(haproxy, text, file)
        async with running(haproxy, "-db", "-f", str(file), port=port):
            assert await connected_through(node, port)
            await all_get_in(port)


@pytest.mark.asyncio
@pytest.mark.parametrize("tls", [True, False], ids=["tls", "plain"])
async def test_three_nats_servers(tls: bool, tmp_path: Path) -> None:
    """With the certificates of the page they are a cluster, which a node of the page can use."""
    openssl, program = wanted("openssl"), nats_server_program()
    hosts = [f"127.0.0.{number}" for number in (11, 12, 13)]
    ports, directory = {"4222": str(free_port()), "6222": str(free_port())}, str(tmp_path)

    def here(text: str, *more: tuple[str, str]) -> str:
        for old, new in (*more, ("10.0.0.1", "127.0.0.1")):
            assert old in text
            text = text.replace(old, new)
        return re.sub(":(4222|6222)", lambda found: f":{ports[found[1]]}", text)

    script = block("run-a-cluster.md", "sh").replace("openssl ", f"{openssl} ")
    subprocess.run(["sh", "-ec", here(script)], cwd=tmp_path, check=True, capture_output=True)
    node = here(block("run-a-cluster.md", "toml"), ("/etc/taipan/nats-ca.pem", f"{directory}/ca.pem"))
    server = block("run-a-cluster.md", "nats")
    if not tls:
        server = "".join(line for line in server.splitlines(keepends=True) if "tls {" not in line)
        node = "".join(line for line in node.splitlines(keepends=True) if not line.startswith("tls_ca"))
        node = node.replace("tls://", "nats://")
    (tmp_path / "taipan.toml").write_text(node)
    async with contextlib.AsyncExitStack() as stack:
        for number, host in enumerate(hosts, 1):
            own = [('listen: "10.0.0.11:', f'listen: "{host}:'), ("nats1", f"nats{number}")]
            if tls:
                own += [("/etc/nats/server", f"{directory}/{host}"), ("/etc/nats/", f"{directory}/")]
            file = tmp_path / f"{host}.conf"
            file.write_text(here(server, ("/var/lib/nats", f"{directory}/js{number}"), *own))
            await stack.enter_async_context(running(program, "-c", str(file), port=int(ports["4222"]), host=host))
        async with asyncio.timeout(patience(60)):
            while True:  # until they have a leader
                words = (sys.executable, "-m", "taipan", "check", "--connect", str(tmp_path / "taipan.toml"))
                process = await asyncio.create_subprocess_exec(
                    *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=ROOT
                )
                out, err = await process.communicate()
                if process.returncode == 0:
                    break
                assert b"has no quorum yet" in err, err.decode()
    said = out.decode()
    scheme = "tls" if tls else "nats"
    assert "not reached" not in said and all(f"{scheme}://{host}:{ports['4222']}" in said for host in hosts)


@pytest.mark.asyncio
async def test_nginx(tmp_path: Path) -> None:
    nginx = wanted("nginx")
    module = Path(nginx).parents[1] / "lib" / "nginx" / "modules" / "ngx_stream_module.so"
    port = free_port()
    async with managed_node(zone=ANYBODY, listeners=PROXY) as node:
        page = block("behind-a-load-balancer.md", "nginx")
        for old in ("10.0.0.21:1883", "10.0.0.22:1883", "listen 1883 "):
            assert old in page
        text = page.replace("10.0.0.21:1883", f"127.0.0.1:{node.server.listeners[0].port}")
        text = text.replace("10.0.0.22:1883", f"127.0.0.1:{free_port()}").replace("listen 1883 ", f"listen {port} ")
        file = tmp_path / "nginx.conf"
        load = f"load_module {module};\n" if module.exists() else ""
        file.write_text(
            f"{load}daemon off;\nmaster_process off;\npid {tmp_path}/pid;\nerror_log stderr;\nevents {{}}\n{text}"
        )
        async with running(nginx, "-p", str(tmp_path), "-c", str(file), "-e", "stderr", port=port):
            assert await connected_through(node, port)


async def served(port: int, ca: str) -> int:
    """The number of the certificate that is served."""
    context = ssl.create_default_context(cafile=ca)
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
    der = writer.get_extra_info("ssl_object").getpeercert(True)
    writer.close()
    return x509.load_der_x509_certificate(der).serial_number


@pytest.mark.asyncio
async def test_a_certificate_is_renewed(certificates: Certificates, tmp_path: Path) -> None:
    """By the script of the page, on a node that runs, while a client is connected."""
    lineage, to, port = tmp_path / "live", tmp_path / "tls", free_port()
    lineage.mkdir()
    pid = tmp_path / "pid"
    script = block("lets-encrypt.md", "sh")
    for old, new in (
        ("/etc/taipan/tls", str(to)), ("chgrp taipan", f"chgrp {os.getgid()}"),
        ("systemctl reload taipan", f'test ! -e {pid} || kill -HUP "$(cat {pid})"'),
    ):  # fmt: skip
        assert old in script
        script = script.replace(old, new)

    def renew() -> None:
        certfile, keyfile = certificates.issue("localhost")
        shutil.copy(certfile, lineage / "fullchain.pem")
        shutil.copy(keyfile, lineage / "privkey.pem")
        subprocess.run(["sh", "-c", script], env={**os.environ, "RENEWED_LINEAGE": str(lineage)}, check=True)

    renew()
    config = tmp_path / "taipan.toml"
    listener = block("lets-encrypt.md", "toml").partition("[management]")[0]
    text = listener.replace("/etc/taipan/tls", str(to)).replace("0.0.0.0:8883", f"127.0.0.1:{port}")
    config.write_text(f'{text}\n[node]\ndata_dir = "{tmp_path / "data"}"\n')
    node = await NodeProcess(config).start()
    try:
        pid.write_text(str(node.process.pid))
        first = await served(port, certificates.ca)
        context = ssl.create_default_context(cafile=certificates.ca)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
        writer.write(CONNECT)
        assert await reader.readexactly(4) == CONNACK
        renew()
        async with asyncio.timeout(patience(40)):
            while await served(port, certificates.ca) == first:
                await asyncio.sleep(0.02)
        writer.write(b"\xc0\x00")  # PINGREQ: it stayed
        assert await reader.readexactly(2) == b"\xd0\x00"
        writer.close()
        assert {path.name for path in to.iterdir()} == {"fullchain.pem", "privkey.pem"}
        assert (to / "privkey.pem").stat().st_mode & 0o777 == 0o640
    finally:
        assert await node.stop() == 0


@pytest.mark.asyncio
async def test_the_log_is_rotated(tmp_path: Path) -> None:
    logrotate = wanted("logrotate")
    log, config, port = tmp_path / "taipan.log", tmp_path / "taipan.toml", free_port()
    rules = block("log-files.md", "logrotate").replace("/var/log/taipan/taipan.log", str(log))
    (tmp_path / "rules").write_text(rules)
    (tmp_path / "rules").chmod(0o644)
    tmp_path.chmod(0o755)
    config.write_text(
        f'[node]\ndata_dir = "{tmp_path / "data"}"\n[log]\nformat = "json"\n'
        f'[[listeners]]\nname = "a"\ntype = "tcp"\nbind = "127.0.0.1:{port}"\n'
    )
    environment = {**os.environ, "TAIPAN__MANAGEMENT__BIND": "127.0.0.1:0", **NO_DASHBOARD}
    with open(log, "ab") as appended:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "taipan.management.node", "--config", str(config),
            stdout=asyncio.subprocess.PIPE, stderr=appended, env=environment, cwd=ROOT,
        )  # fmt: skip
    try:
        assert process.stdout is not None
        while not (await process.stdout.readline()).startswith(b"taipan ready"):
            assert process.returncode is None
        await until(lambda: b"/ctl.sock" in log.read_bytes())  # the last line of a start
        before = log.read_bytes()
        subprocess.run([logrotate, "-f", "-s", str(tmp_path / "state"), str(tmp_path / "rules")], check=True)
        assert (tmp_path / "taipan.log.1").read_bytes() == before and log.read_bytes() == b""
        process.send_signal(signal.SIGHUP)
        await until(lambda: b'"reloaded"' in log.read_bytes())
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        assert "reloaded" in [line["event"] for line in lines] and log.read_bytes().startswith(b"{")
    finally:
        process.terminate()
        await process.communicate()
    assert json.loads(log.read_text().splitlines()[-1])["event"] == "stopped"


def test_prometheus_takes_what_the_page_and_the_packages_have(tmp_path: Path) -> None:
    promtool = wanted("promtool")
    secret = tmp_path / "taipan.secret"
    secret.write_text("x")
    config = tmp_path / "prometheus.yml"
    text = block("monitor.md", "yaml").replace("/etc/prometheus/taipan.secret", str(secret))
    alerts = ROOT / "packaging" / "prometheus" / "alerts.yml"
    config.write_text(f"{text}\nrule_files: [{alerts}]\n")
    for words in (("config", str(config)), ("config", str(ROOT / "packaging/prometheus/prometheus.yml"))):
        done = subprocess.run([promtool, "check", *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert "6 rules found" in subprocess.run(
        [promtool, "check", "rules", str(alerts)], capture_output=True, text=True, check=True
    ).stdout  # fmt: skip


@pytest.mark.asyncio
async def test_alerts_ask_for_what_a_node_has() -> None:
    async with managed_node({"public_metrics": True}) as node:
        await node.api.get("/nowhere")
        client = ApiClient(node.management.url, "", app=None)
        there = set(re.findall(r"(?m)^(\w+)[{ ]", (await client.get("/metrics")).text)) | {
            "taipan_refusals_total",
            "taipan_replicas_missing",  # only with cluster.replicas: tests/api/test_cluster_replicas.py
        }
        await client.close()
    alerts = (ROOT / "packaging" / "prometheus" / "alerts.yml").read_text("utf-8")
    asked = set(re.findall(r"\b(?:emqx|taipan)_\w+", alerts))
    assert len(asked) == 5 and asked <= there
    page = (ROOT / "docs" / "monitor.md").read_text("utf-8")
    rows = page.partition("## Alert on these")[2].partition("\n## ")[0]
    spans = re.findall(r"`([^`]+)`", rows)
    expressions = re.findall(r"(?m)expr: (.*)$", alerts)[1:]
    assert len(expressions) == 5 and all(any(each.startswith(span) for span in spans) for each in expressions)
