"""The fixtures of tests/, for the tests of extensions."""

from tests.conftest import one_thread, pytest_configure, shell

__all__ = ["one_thread", "pytest_configure", "shell"]
