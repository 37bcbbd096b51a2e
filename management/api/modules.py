"""/modules and /plugins, for EMQX's dashboard: the parts of a node, which of them are active, start and stop."""

import msgspec

from ..http.envelope import Extra
from ..http.routes import Call, Endpoints, OfNodes
from ..operations.modules import ModuleRecord, PluginRecord

routes = Endpoints("Modules and plugins")


class NodeModules(msgspec.Struct):
    """The modules of one node."""

    node: str
    modules: list[ModuleRecord]


class NodePlugins(msgspec.Struct):
    """The plugins of one node."""

    node: str
    plugins: list[PluginRecord]


@routes.get("/modules", "Modules of all nodes", reply=OfNodes(list[NodeModules]))
async def list_modules(call: Call) -> list[NodeModules] | Extra:
    return await call.on_all(NodeModules, call.operations.modules.records)


@routes.get("/nodes/{node}/modules", "Modules of a node", reply=list[ModuleRecord])
async def list_node_modules(call: Call) -> list[ModuleRecord]:
    return await call.on_node(call.operations.modules.records)


@routes.put("/modules/{module}/load", "Start a module on all nodes")
async def load_module(call: Call) -> None:
    await call.operations.modules.load_everywhere(call.path["module"])


@routes.put("/nodes/{node}/modules/{module}/load", "Start a module on a node")
async def load_node_module(call: Call) -> None:
    return await call.on_node(call.operations.modules.load, call.path["module"])


@routes.put("/modules/{module}/unload", "Stop a module on all nodes")
async def unload_module(call: Call) -> None:
    await call.operations.modules.unload_everywhere(call.path["module"])


@routes.put("/nodes/{node}/modules/{module}/unload", "Stop a module on a node")
async def unload_node_module(call: Call) -> None:
    return await call.on_node(call.operations.modules.unload, call.path["module"])


@routes.put("/modules/{module}/reload", "Reload a module; has no effect")
def reload_module(call: Call) -> None:
    call.operations.modules.reload(call.path["module"])


@routes.put("/nodes/{node}/modules/{module}/reload", "Reload a module; has no effect")
def reload_node_module(call: Call) -> None:
    call.operations.modules.reload(call.path["module"])


@routes.get("/plugins", "Plugins of all nodes", reply=OfNodes(list[NodePlugins]))
async def list_plugins(call: Call) -> list[NodePlugins] | Extra:
    return await call.on_all(NodePlugins, call.operations.modules.plugins)


@routes.get("/nodes/{node}/plugins", "Plugins of a node", reply=list[PluginRecord])
async def list_node_plugins(call: Call) -> list[PluginRecord]:
    return await call.on_node(call.operations.modules.plugins)


@routes.put("/nodes/{node}/plugins/{plugin}/load", "Start a plugin")
def load_plugin(call: Call) -> None:
    """Refused, because plugins are parts of the node."""
    call.operations.modules.change_plugin(call.path["plugin"], True)


@routes.put("/nodes/{node}/plugins/{plugin}/unload", "Stop a plugin of a node")
def unload_node_plugin(call: Call) -> None:
    """Refused, because plugins are parts of the node."""
    call.operations.modules.change_plugin(call.path["plugin"], False)


@routes.put("/plugins/{plugin}/unload", "Stop a plugin")
def unload_plugin(call: Call) -> None:
    """Refused, because plugins are parts of the node."""
    call.operations.modules.change_plugin(call.path["plugin"], False)


@routes.put("/nodes/{node}/plugins/{plugin}/reload", "Reload a plugin; has no effect")
def reload_node_plugin(call: Call) -> None:
    call.operations.modules.change_plugin(call.path["plugin"], None)


@routes.put("/plugins/{plugin}/reload", "Reload a plugin; has no effect")
def reload_plugin(call: Call) -> None:
    call.operations.modules.change_plugin(call.path["plugin"], None)
