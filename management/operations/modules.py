"""Modules and plugins: EMQX's words for the parts of a node. Some can be started and stopped while it runs."""

import logging
from typing import Final

import msgspec

from taipan.broker.extensions.extension import Extension
from taipan.broker.server import Server

from .durable_answer import TROUBLE, UNSURE
from .node_calls import NodeCalls
from .refusal import PLUGIN_DISABLED, PLUGIN_ENABLED, RPC_ERROR, WRONG, Refusal, not_found
from .topic_metrics import TopicCounts

logger = logging.getLogger(__name__)


class ModuleRecord(msgspec.Struct):
    name: str
    description: str
    active: bool


class PluginRecord(msgspec.Struct):
    """``type``: EMQX's word for the purpose of the plugin."""

    name: str
    description: str
    active: bool
    type: str


class _State(msgspec.Struct, array_like=True, frozen=True):
    """The state of a module that an operator has set; it overrides the configuration."""

    active: bool


_PART_OF_THE_NODE: Final = (
    ("emqx_mod_acl_internal", "Access rules of the configuration"),
    ("emqx_mod_trace", "Traces"),
)
"""EMQX modules whose functions are always active here."""
PLUGINS: Final = (
    PluginRecord("emqx_auth_mnesia", "Users and access rules of the store", True, "auth"),
    PluginRecord("emqx_bridge_mqtt", "Bridges to other brokers", True, "bridge"),
    PluginRecord("emqx_dashboard", "The dashboard", True, "feature"),
    PluginRecord("emqx_management", "The HTTP API and taipan-ctl", True, "feature"),
    PluginRecord("emqx_prometheus", "Figures for Prometheus", True, "feature"),
    PluginRecord("emqx_retainer", "Retained messages", True, "feature"),
    PluginRecord("emqx_rule_engine", "The rule engine", True, "feature"),
    PluginRecord("emqx_web_hook", "Web hooks: [webhook], and actions of rules", True, "feature"),
)


class Modules:
    """Modules of this node; each node has its own. Starting and stopping a module persists across a restart."""

    def __init__(self, server: Server, topic_metrics: TopicCounts, calls: NodeCalls, has_dashboard: bool) -> None:
        self._server = server
        self._calls = calls
        self._has_dashboard = has_dashboard
        found: tuple[Extension, ...] = (
            server.delayed,
            server.presence,
            server.rewrite,
            server.auto_subscribe,
            server.slow_subscriptions,
            topic_metrics.module,
        )
        self._modules = {each.name: each for each in found}
        self._table = server.tables.open("modules", _State)
        server.on_recovered.append(self._restore)
        calls.serve(self.records, self.plugins, self.load, self.unload)

    def _restore(self) -> None:
        for name, state in list(self._table.items()):
            module = self._modules.get(name)
            if module is not None and module.active != state.active:
                logger.info("module_as_it_was_left name=%s active=%s", name, state.active)
                self._set(module, state.active)

    def records(self) -> list[ModuleRecord]:
        """Return the modules by name."""
        found = [ModuleRecord(each.name, each.description, each.active) for each in self._modules.values()]
        found += [ModuleRecord(name, description, True) for name, description in _PART_OF_THE_NODE]
        return sorted(found, key=lambda record: record.name)

    def plugins(self) -> list[PluginRecord]:
        """Return the plugins by name."""
        return [
            msgspec.structs.replace(each, active=self._has_dashboard) if each.name == "emqx_dashboard" else each
            for each in PLUGINS
        ]

    async def load(self, name: str) -> None:
        """Start a module. Raises Refusal."""
        await self._change(name, True)

    async def unload(self, name: str) -> None:
        """Stop a module; its waiting items, such as delayed messages, are still processed. Raises Refusal."""
        await self._change(name, False)

    async def load_everywhere(self, name: str) -> None:
        """Start a module on all nodes."""
        await self._calls.order_all(self.load, name)

    async def unload_everywhere(self, name: str) -> None:
        """Stop a module on all nodes."""
        await self._calls.order_all(self.unload, name)

    def reload(self, name: str) -> None:
        """Do nothing: no module stores anything that would have to be read again. Raises Refusal if the module does
        not exist."""
        if name not in self._modules and name not in dict(_PART_OF_THE_NODE):
            raise not_found("module", name[:256])

    def change_plugin(self, name: str, active: bool | None) -> None:
        """Start, stop or restart (``None``) a plugin of EMQX. Here plugins are parts of the node, so only a restart
        is accepted. Raises Refusal."""
        found = next((each for each in self.plugins() if each.name == name), None)
        if found is None:
            raise not_found("plugin", name[:256])
        if active is None:
            return
        if active and found.active:
            raise Refusal(PLUGIN_ENABLED, f"already_started: {name}")
        if not active and not found.active:
            raise Refusal(PLUGIN_DISABLED, f"not_started: {name}")
        settings = {"emqx_dashboard": " (setting dashboard.enabled)", "emqx_web_hook": " (setting webhook.url)"}
        raise Refusal(WRONG, f"{name} is a part of the node: only its configuration decides{settings.get(name, '')}")

    async def _change(self, name: str, active: bool) -> None:
        module = self._modules.get(name)
        if module is None:
            if name in dict(_PART_OF_THE_NODE):
                if active:
                    raise Refusal(PLUGIN_ENABLED, f"already_started: {name}")
                raise Refusal(WRONG, f"{name} is a part of the node and cannot be stopped")
            raise not_found("module", name[:256])
        if module.active == active:
            if active:
                raise Refusal(PLUGIN_ENABLED, f"already_started: {name}")
            raise Refusal(PLUGIN_DISABLED, f"not_started: {name}")
        tables = self._server.tables
        if tables.in_trouble:
            raise Refusal(RPC_ERROR, TROUBLE)
        self._set(module, active)
        self._table.put(name, _State(active))
        if not await tables.stored():
            raise Refusal(RPC_ERROR, UNSURE)

    def _set(self, module: Extension, active: bool) -> None:
        if active:
            module.load()
        else:
            module.unload()
