"""The words of errors are in one file, where a change of them is seen."""

from tests import messages


def test_the_sentences_of_all_errors_are_those_of_messages_txt():
    do = "run python -m tests.messages, and read the difference"
    assert messages.catalog() == messages.FILE.read_text(), do
