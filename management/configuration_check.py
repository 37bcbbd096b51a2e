"""Checks that the objects that a configuration names exist and can be used, as a start requires."""

import time

from taipan.broker.config import ClusterSettings, TlsSettings, parse_bind
from taipan.broker.listener_kinds import LISTENER_KINDS
from taipan.broker.observability.log_text import one_line
from taipan.broker.session.client_info import authority
from taipan.broker.transport.dtls import DtlsContext
from taipan.broker.transport.tls import TlsError, build_context
from taipan.broker.transport.unix_socket import rights_faults

from .configuration.config import Settings
from .configuration.served_certificates import served_certificates
from .configuration.settings import DashboardSettings, ManagementSettings
from .workers import place as workers


def faults(settings: Settings) -> list[str]:
    """Return the problems, one line for each, with its setting."""
    wrong: list[str] = []
    served: list[tuple[str, TlsSettings | None]]
    served = [
        (f"listeners.{index}", each.tls)
        for index, each in enumerate(settings.broker.listeners)
        if not (LISTENER_KINDS[each.type].datagram and each.tls is not None and each.tls.psk_file)
    ]
    served += [(name, each.tls) for name, each in http_tables(settings) if each.enabled]
    for place, tls in served:
        if tls is not None:
            try:
                build_context(tls)
            except TlsError as error:
                wrong.append(f"{place}.{error}")
    for index, listener in enumerate(settings.broker.listeners):
        if LISTENER_KINDS[listener.type].datagram and listener.tls is not None:
            try:
                DtlsContext(listener.tls)
            except TlsError as error:
                wrong.append(f"listeners.{index}.{error}")
        if LISTENER_KINDS[listener.type].local:
            wrong += [f"listeners.{index}.{error.key}: {error}" for error in rights_faults(listener)]
    if settings.broker.cluster is not None:
        wrong += _cluster_faults(settings.broker.cluster)
    wrong += workers.faults(settings)
    wrong += filter(None, (each.fault(time.time()) for each in served_certificates(settings)))
    from taipan.ruleengine.types.operator_modules import validate_modules  # imported here, because few commands need it

    wrong += validate_modules([each.module for each in settings.ruleengine.functions])
    return wrong


def _cluster_faults(cluster: ClusterSettings) -> list[str]:
    """Check the files for credentials and TLS as a start does."""
    try:
        from taipan.broker.cluster.nats.connection import file_faults  # imported here: only [cluster] needs nkeys
    except ImportError as error:
        return [f"[cluster]: {error}: pip install nkeys"]
    return [one_line(str(each)) for each in file_faults(cluster)]


def http_tables(settings: Settings) -> list[tuple[str, ManagementSettings | DashboardSettings]]:
    return [("management", settings.management), ("dashboard", settings.dashboard)]


def binds(settings: Settings) -> dict[str, str]:
    """Return every address and TCP port at which the node listens, by setting."""
    listeners = enumerate(settings.broker.listeners)
    found = {
        f"listeners.{index}.bind": each.bind
        for index, each in listeners
        if not (LISTENER_KINDS[each.type].local or LISTENER_KINDS[each.type].datagram)
    }
    return found | {f"{name}.bind": each.bind for name, each in http_tables(settings) if each.enabled}


def datagram_binds(settings: Settings) -> dict[str, str]:
    """Return every address and UDP port at which the node listens, by setting."""
    listeners = enumerate(settings.broker.listeners)
    return {f"listeners.{index}.bind": each.bind for index, each in listeners if LISTENER_KINDS[each.type].datagram}


def socket_paths(settings: Settings) -> dict[str, str]:
    """Return every Unix socket at which the node accepts clients, by setting."""
    listeners = enumerate(settings.broker.listeners)
    return {f"listeners.{index}.bind": each.bind for index, each in listeners if LISTENER_KINDS[each.type].local}


def other_address(setting: str, taken: str) -> str:
    """Return how to use an address other than ``taken``, which another process uses."""
    host, port = parse_bind(taken)
    other = authority(host, port % 65_535 + 1)
    return f"to use another address for this run: --set {setting}={other}, permanently: in the file given by --config"
