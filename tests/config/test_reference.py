"""Documentation, help and comments that are generated from the schema."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ninefold.config import reference, schema
from ninefold.config.options import option_keys
from ninefold.places import option_files
from tests.conftest import ROOT, Shell

COMMAND = "python -m ninefold.config.reference"


def test_what_is_generated_is_up_to_date() -> None:
    for path, text in reference.generated().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run {COMMAND}"


def test_a_key_in_a_yaml_has_its_sentence_behind_it_however_long_it_was() -> None:
    keys = reference.keys_of("train")
    before = f"# A file\nepochs: 1  # old\nlaunch:\n  grace: 5\n{' ' * 24}# more\nhydra:\n  a: 1\n"
    lines = reference.commented(before, keys).splitlines()
    assert lines[0] == "# A file"
    assert lines[1] == f"{'epochs: 1':24}# {keys['epochs'].meaning}"
    assert lines[3] == f"{'  grace: 5':24}# {keys['launch.grace'].meaning}"
    assert lines[4:] == ["hydra:", "  a: 1"]


def documented() -> Iterator[str]:
    for line in (ROOT / "docs" / "keys.md").read_text().splitlines():
        if line.startswith("| `"):
            yield line.split("`")[1]


def test_the_page_of_keys_has_every_key_and_every_option() -> None:
    keys = {n for n, key in {**schema.KEYS, **option_keys()}.items() if not key.is_section}
    options = {path.stem for path in option_files()}
    assert set(documented()) == keys | options


def test_the_page_of_keys_marks_those_that_a_resumed_run_takes_another_value_of() -> None:
    lines = (ROOT / "docs" / "keys.md").read_text().splitlines()
    marked = {line.split("`")[1] for line in lines if line.endswith(" resume |")}
    assert marked >= {"epochs", "launch.grace", "launch.inline", "checkpoint.keep"}
    assert "seed" not in marked


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_help_fits_a_screen_and_has_every_option_of_each_group(shell: Shell, command: str) -> None:
    done = shell.run(str(ROOT / f"{command}.py"), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 100
    text = " ".join(done.stdout.split())
    for group in reference.COMMANDS[command]:
        assert f" {group} {' '.join(reference.options_of(group))} " in text
    assert "python -m ninefold keys [PATTERN]" in text
