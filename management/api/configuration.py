"""/configuration: the settings in force."""

import msgspec

from ..http.envelope import Extra
from ..http.routes import Call, Endpoints, OfNodes
from ..operations.configuration import CertificateRecord, ConfigurationQuery, SettingRecord
from ..operations.listing import Listing

routes = Endpoints("Configuration")


@routes.get(
    "/configuration", "Settings in force and where they come from", query=ConfigurationQuery, reply=list[SettingRecord]
)
async def list_configuration(call: Call) -> Listing[SettingRecord]:
    return await call.operations.configuration.listing(call.query, call.operations.settings.max_row_limit)


class NodeCertificates(msgspec.Struct):
    """The certificates that one node serves."""

    node: str
    certificates: list[CertificateRecord]


@routes.get("/certificates", "Certificates that are served, and their end", reply=OfNodes(list[NodeCertificates]))
async def list_certificates(call: Call) -> list[NodeCertificates] | Extra:
    return await call.on_all(NodeCertificates, call.operations.configuration.certificates)
