"""``tools.unused``: what it finds, and that an excuse has to be needed."""

from pathlib import Path

from tools.unused import EXCUSED, PATHS, Finding, faults, unused


def test_what_nobody_uses_is_found(tmp_path: Path) -> None:
    (tmp_path / "broker").mkdir()
    (tmp_path / "management").mkdir()
    (tmp_path / "broker" / "a.py").write_text(
        "from msgspec import Struct\n\n\nclass Row(Struct):\n    field: int = 0\n\n\nRow()\n\n\ndef lonely(): ...\n"
    )
    (tmp_path / "management" / "b.py").write_text(
        "import msgspec\n\n\nclass Reply(msgspec.Struct):\n    field2: int\n\n\n@routes.get('/x')\ndef get_x():\n"
        "    return Reply\n\n\nmetrics.packets_seen += 1\n"
    )
    found = unused(tmp_path, ("broker", "management"))
    assert found == [
        Finding("broker/a.py", 5, "variable", "field"),
        Finding("broker/a.py", 11, "function", "lonely"),
    ]
    excused = {"broker/a.py": ("a reason", "field other"), "broker/gone.py": ("a reason", "it")}
    assert faults(found, excused) == [
        "broker/a.py:11: function lonely is not used",
        "broker/a.py: other is used, or gone: it needs no excuse",
        "broker/gone.py: it is used, or gone: it needs no excuse",
    ]


def test_every_excuse_has_a_reason() -> None:
    assert all(reason and names for reason, names in EXCUSED.values()) and "broker" in PATHS
