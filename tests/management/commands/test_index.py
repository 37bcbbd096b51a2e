"""The table of the commands of ``taipan``, and the options of ``taipan`` that a command refuses."""

import importlib
import pkgutil

import pytest

from taipan.management import commands
from taipan.management.commands.index import COMMANDS
from taipan.management.node import main


def test_every_command_is_in_the_table() -> None:
    names = [each.name for each in pkgutil.iter_modules(commands.__path__)]
    modules = [importlib.import_module(f"{commands.__name__}.{name}") for name in names]
    found = {module.add_to for module in modules if hasattr(module, "add_to")}
    assert found == set(COMMANDS) and len(found) == len(COMMANDS)


BOTH = ("--config a.toml", "--set node.name=a@b")


@pytest.mark.parametrize(
    "command, given, error",
    [
        *[(f"{command}", each, f"--config and --set are for running a node, not for {command.split()[0]}")
          for command in ("cluster try", "completion bash", "init", "install-service", "manual taipan",
                          "migrate emqx a --into b")
          for each in BOTH],
        ("hash-password", BOTH[0], "--config is for running a node, not for hash-password"),
        ("check a.toml", "--workers 2", "--workers is for running a node, not for check"),
        ("check a.toml", BOTH[0], "check requires a FILE (or - for standard input)"),
        ("check", "", "check requires a FILE (or - for standard input)"),
    ],
)  # fmt: skip
def test_options_of_a_node_are_refused(
    command: str, given: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*given.split(), *command.split()])
    assert ended.value.code == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("usage: taipan [-h]") and output.err.endswith(f"taipan: error: {error}\n")
