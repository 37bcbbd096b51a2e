"""The descriptor of exhook is what protoc makes of its .proto file."""

import subprocess
import sys
from importlib.resources import files
from pathlib import Path

from taipan.broker.access.exhook.messages import CLASSES

PACKAGE = files("taipan.broker.access.exhook")


def test_the_descriptor_is_that_of_the_proto(tmp_path: Path) -> None:
    (tmp_path / "exhook.proto").write_bytes(PACKAGE.joinpath("exhook.proto").read_bytes())
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{tmp_path}", f"--descriptor_set_out={tmp_path}/out"]
    subprocess.run([*command, "exhook.proto"], check=True, cwd=tmp_path, timeout=120)
    assert (tmp_path / "out").read_bytes() == PACKAGE.joinpath("exhook.binpb").read_bytes()


def test_field_numbers_are_those_of_emqx() -> None:
    assert CLASSES["ValuedResponse"](type=2, bool_result=True).SerializeToString() == bytes([8, 2, 24, 1])
    message = CLASSES["Message"](node="n", id="i", qos=1, topic="t", payload=b"p", timestamp=1, **{"from": "f"})
    assert message.SerializeToString() == b'\n\x01n\x12\x01i\x18\x01"\x01f*\x01t2\x01p8\x01'
