"""Messages between a launcher and its workers: lines of JSON over a Unix socket."""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any


class Channel:
    """One end of a connection. `receive` returns None once the other end is closed or dead."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lines = connection.makefile("rb")

    @classmethod
    def to(cls, address: Path) -> Channel:
        """Connect to the socket at `address`. Raises OSError."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(address))
        return cls(connection)

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, **message: Any) -> None:
        """Send a message; one to an end that is closed is lost."""
        try:
            self._connection.sendall(json.dumps(message).encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError):
            return

    def receive(self) -> dict[str, Any] | None:
        """Wait for a message, without using the CPU."""
        try:
            line = self._lines.readline()
        except ConnectionResetError:
            return None
        message: dict[str, Any] | None = json.loads(line) if line.endswith(b"\n") else None
        return message

    def await_end(self, seconds: float) -> None:
        """Wait until the other end is closed, as by the end of its process; at most `seconds`."""
        self._connection.settimeout(seconds)
        with suppress(TimeoutError):
            while self.receive() is not None:
                continue

    def close(self) -> None:
        self._lines.close()
        self._connection.close()
