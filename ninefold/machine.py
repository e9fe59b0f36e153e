"""The compiler that torch.compile calls, looked for before anything starts; imports no torch."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig

from ninefold.errors import ConfigError


def require_compiler(mode: str, gpu: bool) -> None:
    """Raise ConfigError unless there is one that compiles against Python's headers.

    For a CPU torch's inductor writes C++, for a GPU Triton writes its launchers in C.
    """
    if gpu:
        language, variable, default = "c", "CC", "cc"
    else:
        language, variable = "c++", "CXX"
        default = "clang++" if sys.platform == "darwin" else "g++"
    name = os.environ.get(variable, default)
    command = [name, "-x", language, "-fsyntax-only", "-I", sysconfig.get_path("include"), "-"]
    try:
        done = subprocess.run(
            command, input="#include <Python.h>\n", capture_output=True, text=True, timeout=60
        )
        lines = [line for line in done.stderr.splitlines() if "error" in line] or ["it fails"]
        wrong = None if done.returncode == 0 else f"{name}: {lines[0]}"
    except (OSError, subprocess.SubprocessError) as error:
        wrong = f"{name}: {getattr(error, 'strerror', None) or error}"
    if wrong is not None:
        raise ConfigError(
            "compile.mode", mode, f"no working compiler ({wrong})",
            f"torch.compile calls {default}, or what {variable} names, and needs Python's headers",
            "install them (Debian: g++ and python3-dev) or leave compile out",
        )  # fmt: skip
