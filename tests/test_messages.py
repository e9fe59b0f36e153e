"""The words of errors are in one file, where a change of them is seen."""

import ast

from ninefold.errors import ConfigError
from tests import messages


def test_each_error_says_what_is_wrong_what_is_allowed_and_what_to_do():
    """Of a part that begins with a value it is not known whether the value has more parts."""
    short = [
        sentence
        for path in messages.modules()
        for sentence in messages.sentences(ast.parse(path.read_text()))
        if len(sentence.split("; ")) < 3 and "{" not in {part[:1] for part in sentence.split("; ")}
    ]
    assert short == []
    for parts in ((), ("one",), ("one; two",), ("one", "two; three; four")):
        said = str(ConfigError("field", "value", *parts))
        assert said.startswith("error: field=value: ")
        assert said.count("; ") >= 2


def test_the_sentences_of_all_errors_are_those_of_messages_txt():
    do = "run python -m tests.messages, and read the difference"
    assert messages.catalog() == messages.FILE.read_text(), do
