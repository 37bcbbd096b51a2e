"""/resource_types: the types of resources."""

from taipan.ruleengine.records import ListedResource, ResourceTypeRecord

from ..http.envelope import Extra, of_nodes
from ..http.routes import Call, Endpoints, OfNodes

routes = Endpoints("Resource types")


@routes.get("/resource_types", "The types of resources", reply=list[ResourceTypeRecord])
def list_resource_types(call: Call) -> list[ResourceTypeRecord]:
    return call.operations.resources.types()


@routes.get("/resource_types/{name}", "One type of resources", reply=ResourceTypeRecord)
def show_resource_type(call: Call) -> ResourceTypeRecord:
    return call.operations.resources.type(call.path["name"])


@routes.get("/resource_types/{name}/resources", "The resources of a type", reply=OfNodes(list[ListedResource]))
async def list_resources_of_type(call: Call) -> list[ListedResource] | Extra:
    return of_nodes(*await call.operations.resources.records(call.path["name"]))
