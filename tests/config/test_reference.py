"""Documentation, help and comments that are generated from the schema."""

import pytest

from ninefold.config.list_commands import COMMANDS, names_in
from tests import reference
from tests.conftest import ROOT

COMMAND = "python -m tests.reference"


def test_what_is_generated_is_up_to_date():
    for path, text in reference.generated().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run {COMMAND}"


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
