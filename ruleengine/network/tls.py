"""The TLS parameters that resources share, and the TLS context for them."""

import contextlib
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, Final

from taipan.broker.loop.regular_file import MAX_CREDENTIALS, check_regular

from ..params import Param, ParamError, Text

NO_CHECK: Final = "disable"
_AUTOMATIC: Final = "auto"


def tls_params(order: int, ciphers: bool = False) -> tuple[Param, ...]:
    """Return ``cacertfile``, ``keyfile``, ``certfile``, ``verify``, ``server_name_indication``, numbered from
    ``order``."""
    files = [
        ("cacertfile", Text("CA Certificates", "CA 证书"), Text("PEM file of the authorities that may have signed the "
         "server's certificate; by default those of the system",
         "校验服务器证书的 CA 证书文件；默认使用系统的 CA 证书")),
        ("keyfile", Text("Client Key", "客户端密钥"), Text("PEM file of the client's private key",
         "客户端私钥的 PEM 文件")),
        ("certfile", Text("Client Certificate", "客户端证书"), Text("PEM file of the client's certificate",
         "客户端证书的 PEM 文件")),
    ]  # fmt: skip
    params = [Param(name, order + at, "file", title, text, default="") for at, (name, title, text) in enumerate(files)]
    order += len(params)
    if ciphers:
        title = Text("Ciphers", "加密套件")
        text = Text(
            "Cipher suites of TLS 1.2 in OpenSSL's notation; by default OpenSSL's own choice",
            "TLS 1.2 加密套件（OpenSSL 格式）；默认由 OpenSSL 选择",
        )
        params.append(Param("ciphers", order, "string", title, text, default=""))
        order += 1
    verify = Text("Verify the Server", "校验服务器证书")
    params.append(
        Param("verify", order, "boolean", verify, Text("Refuse a server whose certificate is not valid",
        "拒绝证书无效的服务器"), default=False)
    )  # fmt: skip
    name = Text("Server Name Indication", "服务器名称指示")
    text = Text(
        "The hostname that the certificate must contain; 'disable': any", "证书中应有的主机名；填 disable 则不检查"
    )
    params.append(Param("server_name_indication", order + 1, "string", name, text))
    return tuple(params)


class NamedContext(ssl.SSLContext):
    """A context that asks for ``name``, whatever the caller connects to: for libraries that get an IP address, because
    it was checked, and would verify the certificate against it."""

    name: str | None = None

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        return super().wrap_bio(incoming, outgoing, server_side, self.name or server_hostname, session)


def client_context(config: Mapping[str, Any]) -> ssl.SSLContext:
    """Return the context for these parameters; reads the files. Raises ParamError."""
    return _filled(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), config)


def named_context(config: Mapping[str, Any], host: str) -> NamedContext:
    """Return a context as ``client_context`` does, that asks for the host or for ``server_name_indication``. Raises
    ParamError."""
    context = NamedContext(ssl.PROTOCOL_TLS_CLIENT)
    context.name = asked_name(config) or host
    _filled(context, config)
    return context


def _filled(context: ssl.SSLContext, config: Mapping[str, Any]) -> ssl.SSLContext:
    cacertfile: str | dict[str, str] | None = config.get("cacertfile") or None
    if config.get("verify"):
        context.check_hostname = server_name(config) != NO_CHECK
        if cacertfile is None:
            context.load_default_certs()
    else:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if cacertfile is not None:
        try:
            if isinstance(cacertfile, str):
                check_regular(cacertfile, MAX_CREDENTIALS)
                context.load_verify_locations(cacertfile)
            else:
                context.load_verify_locations(cadata=cacertfile["file"])
        except (OSError, ValueError):
            raise ParamError("cacertfile", "not a readable PEM file of certificates") from None
    certfile, keyfile = config.get("certfile") or None, config.get("keyfile") or None
    if (certfile is None) != (keyfile is None):
        raise ParamError("keyfile" if keyfile is None else "certfile", "certfile and keyfile must be set together")
    if certfile is not None and keyfile is not None:
        try:
            with _on_disk(certfile) as certificate, _on_disk(keyfile) as key:
                # Without a password function OpenSSL would ask on the terminal.
                context.load_cert_chain(certificate, key, password="")
        except (OSError, ValueError):
            raise ParamError("certfile", "not a readable pair of certificate and unencrypted key") from None
    if config.get("ciphers"):
        try:
            context.set_ciphers(str(config["ciphers"]).replace(",", ":"))
        except ssl.SSLError:
            raise ParamError("ciphers", "this OpenSSL knows none of these cipher suites") from None
    return context


@contextlib.contextmanager
def _on_disk(file: str | dict[str, str]) -> Iterator[str]:
    """Return the path of a file. A file given with its text exists only temporarily and only for its owner, because
    OpenSSL reads a chain and its key only from files."""
    if isinstance(file, str):
        check_regular(file, MAX_CREDENTIALS)
        yield file
        return
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as made:
        made.write(file["file"])
        made.flush()
        yield made.name


def server_name(config: Mapping[str, Any]) -> str | None:
    """Return ``server_name_indication`` if it is given; ``auto`` of EMQX's bridges is the host name."""
    name = config.get("server_name_indication") or None
    return None if name == _AUTOMATIC else name


def asked_name(config: Mapping[str, object]) -> str | None:
    """Return the name to send to the server instead of its hostname; None: the hostname."""
    name = server_name(config)
    return None if name == NO_CHECK else name
