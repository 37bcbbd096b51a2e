"""MQTT.js in one node process: 3.1.1 and 5.0, over TCP and WebSocket."""

import base64
import itertools
import json
import queue
import subprocess
import threading
from pathlib import Path
from typing import Any

from .client import PATIENCE, InteropClient, Received

SCRIPT = Path(__file__).parent.parent / "mqtt_js.mjs"


class JsProcess:
    """The process that runs ``mqtt_js.mjs``; its clients share it."""

    def __init__(self, node: str) -> None:
        self._process = subprocess.Popen(
            [node, str(SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=SCRIPT.parent, text=True
        )
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._answers: dict[int, queue.Queue[dict[str, Any]]] = {}
        self.clients: dict[str, MqttJsClient] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if "message" in said:
                self.clients[said["client"]].on_message(said["message"])
            else:
                self._answers[said["n"]].put(said)

    def ask(self, op: str, **arguments: Any) -> Any:
        answers: queue.Queue[dict[str, Any]] = queue.Queue()
        with self._lock:
            number = next(self._numbers)
            self._answers[number] = answers
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"n": number, "op": op, **arguments}) + "\n")
            self._process.stdin.flush()
        answer = answers.get(timeout=PATIENCE)
        if "error" in answer:
            raise ConnectionError(answer["error"])
        return answer["result"]

    def stop(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        self._process.stdout.close()


class MqttJsClient(InteropClient):
    library = "MQTT.js"
    node: JsProcess  # set by the fixture that starts it
    _handles = itertools.count(1)

    def connect(self) -> bool | None:
        options: dict[str, Any] = {
            "clientId": self.client_id,
            "protocolVersion": self.version,
            "clean": self.clean and not self.persistent,
        }
        if self.persistent and self.version == 5:
            options["properties"] = {"sessionExpiryInterval": 600}
        url = f"mqtt://{self.address.host}:{self.address.port}"
        if self.transport == "ws":
            url = f"ws://{self.address.ws_host}:{self.address.ws_port}{self.address.ws_path}"
        will = None
        if self.will is not None:
            will = {
                "topic": self.will.topic,
                "payload": base64.b64encode(self.will.payload).decode(),
                "qos": self.will.qos,
                "retain": self.will.retain,
            }
        self._handle = f"{self.client_id}-{next(self._handles)}"
        self.node.clients[self._handle] = self
        return bool(self.node.ask("connect", client=self._handle, url=url, options=options, will=will))

    def on_message(self, message: dict[str, Any]) -> None:
        found = message["properties"]
        if "user" in found:
            pairs = found["user"].items()
            found["user"] = [
                (key, one) for key, value in pairs for one in (value if isinstance(value, list) else [value])
            ]
        if "correlation" in found:
            found["correlation"] = base64.b64decode(found["correlation"])
        payload = base64.b64decode(message["payload"])
        self.received.put(Received(message["topic"], payload, message["qos"], message["retain"], found))

    def disconnect(self) -> None:
        self.node.ask("disconnect", client=self._handle)

    def drop(self) -> None:
        self.node.ask("drop", client=self._handle)

    def subscribe(self, topic_filter: str, qos: int) -> None:
        assert self.node.ask("subscribe", client=self._handle, filter=topic_filter, qos=qos) == [qos]

    def unsubscribe(self, topic_filter: str) -> None:
        self.node.ask("unsubscribe", client=self._handle, filter=topic_filter)

    def publish(
        self, topic: str, payload: bytes, qos: int = 0, retain: bool = False, properties: dict[str, Any] | None = None
    ) -> None:
        theirs = dict(properties or {})
        if "user" in theirs:
            grouped: dict[str, list[str]] = {}
            for key, value in theirs["user"]:
                grouped.setdefault(key, []).append(value)
            theirs["user"] = grouped
        if "correlation" in theirs:
            theirs["correlation"] = base64.b64encode(theirs["correlation"]).decode()
        self.node.ask(
            "publish",
            client=self._handle,
            topic=topic,
            payload=base64.b64encode(payload).decode(),
            qos=qos,
            retain=retain,
            properties=theirs,
        )
