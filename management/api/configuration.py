"""/configuration: the settings in force."""

from ..http.routes import Call, Routes
from ..operations.configuration import ConfigurationQuery, SettingRecord
from ..operations.listing import Listing

routes = Routes("Configuration")


@routes.get(
    "/configuration", "Settings in force and where they come from", query=ConfigurationQuery, reply=list[SettingRecord]
)
async def list_configuration(call: Call) -> Listing[SettingRecord]:
    return await call.operations.configuration.listing(call.query, call.operations.settings.max_row_limit)
