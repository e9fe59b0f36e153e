"""Commands in a terminal: what it shows."""

import fcntl
import os
import pty
import struct
import subprocess
import termios
from typing import Any

from tests.conftest import ROOT, Shell


def in_terminal(
    shell: Shell, *words: str, columns: int = 120, typed: bool = False, env: Any = None
) -> tuple[subprocess.Popen[str], int]:
    """Start train.py in a terminal, and return the terminal's other side. typed: its stdin too."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    # In its workers pytest sets COLUMNS, which counts more than the terminal's own size.
    own = {"TERM": "xterm-256color", "COLUMNS": str(columns)}
    options: dict[str, Any] = {"env": {**own, **(env or {})}}
    options |= {"stdin": slave} if typed else {}
    command = (str(ROOT / "train.py"), *words)
    process = shell.start(*command, stdout=slave, stderr=slave, **options)
    os.close(slave)
    return process, master


def shown(master: int, until: str = "") -> str:
    """What a terminal receives, to its end or until a text has come."""
    found = b""
    try:
        while not until or until.encode() not in found:
            found += os.read(master, 65536)
    except OSError:  # its other side is closed
        pass
    return found.decode()
