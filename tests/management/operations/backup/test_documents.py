"""Documents: a body is decoded piece by piece, as if it were one."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from taipan.broker.loop.budget import LoopBudget
from taipan.management.operations.backup import documents as module
from taipan.management.operations.backup.documents import Documents
from taipan.management.operations.refusal import Refusal

pytestmark = pytest.mark.asyncio


@pytest.fixture
def documents(monkeypatch: pytest.MonkeyPatch) -> Documents:
    monkeypatch.setattr(module, "_PIECE", 4)
    flusher = SimpleNamespace(wake=lambda: None)
    return Documents(cast(Any, SimpleNamespace(broker=SimpleNamespace(budget=LoopBudget()), flusher=flusher)))


async def test_characters_go_over_the_ends_of_pieces(documents: Documents) -> None:
    text = '{"file": "aé€😀€éa😀"}'
    document = await documents.read([text.encode()])
    assert "".join(await documents.text(document)) == "aé€😀€éa😀"


@pytest.mark.parametrize("place", range(10, 30))
async def test_the_byte_is_named_that_is_no_utf8(documents: Documents, place: int) -> None:
    octets = ('{"file": "' + "é" * 20).encode()
    broken = octets[:place] + b"\xff" + octets[place:]
    with pytest.raises(UnicodeDecodeError) as expected:
        broken.decode()
    with pytest.raises(Refusal) as told:
        await documents.read([broken[:13], broken[13:]])
    assert str(told.value).endswith(f"{expected.value.reason} at byte {expected.value.start}")


async def test_half_a_character_at_the_end(documents: Documents) -> None:
    with pytest.raises(Refusal, match="unexpected end of data at byte 10"):
        await documents.read([b'{"file": "' + "€".encode()[:2]])
