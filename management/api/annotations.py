"""/annotations: moments with text, such as deployments, which the charts of the dashboard mark."""

from typing import Annotated

import msgspec
from msgspec import Meta

from ..http.routes import Call, Endpoints
from ..operations.annotations import MAX_TEXT, AnnotationRecord, AnnotationsQuery, UnixSeconds

routes = Endpoints("Annotations")


class NewAnnotation(msgspec.Struct):
    """``time``: Unix seconds; now by default."""

    text: Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]
    time: UnixSeconds | None = None


class AnnotationId(msgspec.Struct):
    id: str


@routes.get("/annotations", "Annotations, latest first", query=AnnotationsQuery, reply=list[AnnotationRecord])
def list_annotations(call: Call) -> list[AnnotationRecord]:
    return call.operations.annotations.listing(call.query)


@routes.get("/annotations/{id}", "An annotation", reply=AnnotationRecord)
def lookup_annotation(call: Call) -> AnnotationRecord:
    return call.operations.annotations.lookup(call.path["id"])


@routes.post("/annotations", "Create an annotation", body=NewAnnotation, reply=AnnotationId)
async def add_annotation(call: Call) -> AnnotationId:
    body: NewAnnotation = call.body
    return AnnotationId(await call.operations.annotations.add(body.text, body.time, call.caller.name))


@routes.delete("/annotations/{id}", "Delete an annotation")
async def delete_annotation(call: Call) -> None:
    await call.operations.annotations.delete(call.path["id"])
