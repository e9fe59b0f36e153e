"""Documentation, help and files that are generated from the schema."""

import pytest
import yaml

from ninefold.config.list_commands import COMMANDS, conf, names_in
from ninefold.config.schema import defaults
from tests import reference
from tests.conftest import ROOT

COMMAND = "python -m tests.reference"


def test_the_page_of_keys_is_up_to_date():
    assert reference.PAGE.read_text(encoding="utf-8") == reference.table(), f"run {COMMAND}"


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_conf_prints_what_a_command_takes_with_the_keys_and_their_meanings(command, capsys):
    assert conf([command]) == 0
    printed = yaml.safe_load(text := capsys.readouterr().out)
    assert max(map(len, text.partition("\nhydra:")[0].splitlines())) <= 100
    assert {key: printed[key] for key in defaults(command)} == defaults(command)
    assert {"defaults", "hydra"} <= printed.keys()
    assert "\n  keep: 2               # Step" in text or command == "evaluate"


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_help_fits_a_screen_and_has_every_option_of_each_group(shell, command):
    done = shell.run(str(ROOT / f"{command}.py"), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 100
    text = " ".join(done.stdout.split())
    for group in COMMANDS[command]:
        assert f" {group} {' '.join(names_in(group))} " in text
    assert "python -m ninefold keys [PATTERN]" in text
