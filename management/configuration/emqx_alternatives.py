"""The replacements for resources, actions, modules and parsers of EMQX Enterprise that Taipan does not have."""

from typing import Final

_LOOKUP: Final = "lookup_sub_to_"
_OFFLINE: Final = "offline_msg_to_"
_PREFIXES: Final = ("data_to_", "backend_", "bridge_")
_PROGRAM: Final = (
    "send rows with data_to_kafka, data_to_rabbit or data_to_webserver to a program that writes them there"
)
_UNTESTED: Final = f"no server to test with can be installed from packages; {_PROGRAM}"
_SYSTEMS: Final = {
    "mongo": _UNTESTED,
    "oracle": _UNTESTED,
    "sqlserver": _UNTESTED,
    "cassa": _PROGRAM,
    "dolphindb": _PROGRAM,
    "dynamo": _PROGRAM,
    "gcp_pubsub": _PROGRAM,
    "hstreamdb": _PROGRAM,
    "iotdb": _PROGRAM,
    "lindorm": _PROGRAM,
    "pulsar": _PROGRAM,
    "rocket": _PROGRAM,
    "rpc": "use a cluster, or the resource bridge_mqtt, which connects brokers with MQTT",
    "tablestore": _PROGRAM,
}
"""By the system in the name of an action or resource type, or by the beginning of it."""
_DECODE: Final = "decode payloads with a schema (Avro, Protobuf or JSON Schema), or with an SQL function of your own"
_PARSERS: Final = dict.fromkeys(("3rd-party", "parser_http", "parser_tcp"), _DECODE)
_MODULES: Final = {
    "internal_acl": "write its rules as [[access.rules]], or migrate etc with its acl.conf",
    "presence": "the module emqx_mod_presence is on",
    "recon": "it measures the Erlang virtual machine",
    "retainer": "its limits are [retained]",
    "mqtt_subscriber": "create a resource bridge_mqtt with ingress",
    "hot_confs": "the settings are in the configuration of each node",
}


def instead_of(name: str) -> str:
    """Return what to use in place of an action, a type of resource or a parser, or why there is nothing; empty: the
    name is not one of EMQX's."""
    if name.startswith(_LOOKUP):
        return "use lookup_sub_to_pgsql, _mysql or _redis, or proxy subscription (auto_subscribe.topics)"
    if name.startswith(_OFFLINE):
        return "a persistent session stores messages for a client that is offline, without a database"
    prefix = next((each for each in _PREFIXES if name.startswith(each)), None)
    if prefix is None:
        return _PARSERS.get(name, "")
    system = name.removeprefix(prefix)
    return next((words for each, words in _SYSTEMS.items() if system == each or system.startswith(f"{each}_")), "")


def instead_of_module(kind: str) -> str:
    """Return what to use in place of a module of an export that does not authenticate clients; empty: nothing."""
    return _MODULES.get(kind, "")


def unknown(what: str, *names: str) -> str:
    """Return a sentence about unknown names, with the replacements. ``what``: a noun for them, in the singular."""
    shown = [name[:64] for name in names]
    sentence = f"{what if len(shown) == 1 else what + 's'} {', '.join(shown)} {'is' if len(shown) == 1 else 'are'}"
    instead = dict.fromkeys(filter(None, map(instead_of, names)))
    return "; ".join([f"{sentence} unknown here", *instead])
