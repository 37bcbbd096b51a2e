"""The settings of OpenTSDB in ``[ruleengine]``."""

import msgspec

from taipan.broker.config import PositiveSeconds


class OpenTsdbSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Times are seconds."""

    opentsdb_connect_timeout: PositiveSeconds = 10.0
    opentsdb_response_timeout: PositiveSeconds = 30.0


SETTINGS = OpenTsdbSettings
