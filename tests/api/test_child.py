"""The command of a comparison, a process of its own."""

from ninefold.api import child


def test_a_command_that_is_stopped_before_it_has_begun_says_so_in_one_line(tmp_path):
    """Python itself would print a traceback."""
    log = tmp_path / "output.txt"
    ended = child.run(child.TRAIN, log, print, prints=False, shows=False, seconds=0)
    assert (ended.late, ended.code) == (True, 130)
    said = "error: signal=SIGINT: interrupted; nothing runs yet; start again\n"
    assert log.read_text() == said
