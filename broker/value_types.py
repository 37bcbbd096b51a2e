"""Types for the values of settings: numbers with limits and units, which error messages name."""

from typing import Annotated

from msgspec import Meta

Count = Annotated[int, Meta(ge=0)]
Natural = Annotated[int, Meta(ge=1)]
Uint16 = Annotated[int, Meta(ge=0, le=65_535)]
Uint32 = Annotated[int, Meta(ge=0, le=4_294_967_295)]
Seconds = Annotated[float, Meta(ge=0, extra={"unit": "seconds"})]
PositiveSeconds = Annotated[float, Meta(gt=0, extra={"unit": "seconds"})]
Bytes = Annotated[int, Meta(ge=0, extra={"unit": "bytes"})]
PositiveBytes = Annotated[int, Meta(ge=1, extra={"unit": "bytes"})]
# The standard does not allow larger packets.
PacketSize = Annotated[int, Meta(ge=1, le=268_435_460, extra={"unit": "bytes"})]
Rate = Annotated[tuple[Natural, PositiveSeconds], Meta(extra={"expected": "[amount, seconds], both more than 0"})]
