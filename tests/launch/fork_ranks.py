"""Ranks of several hosts as torchrun starts them, without hosts and without torchrun.

Each is forked from this process, which has imported torch. Reads cases from a file, by name:
{"ranks": [{"argv": [...], "env": {...}}, ...], "kill": RANK, "when": PATH}, of a rank that is
killed once there is that file. Writes to another how each ended: {"code": ..., "stdout": ...,
"stderr": ..., "seconds": ...}.
Rank 0 serves the store, as after TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1.
"""

import json
import os
import runpy
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
AGENT = {
    "TORCHELASTIC_RUN_ID": "x",
    "TORCHELASTIC_USE_AGENT_STORE": "False",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def start(rank: dict[str, Any], env: dict[str, str], files: list[Path]) -> int:
    """Fork a rank that runs train.py; returns its process id."""
    pid = os.fork()
    if pid:
        return pid
    for descriptor, file in zip((1, 2), files, strict=True):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), descriptor)
    os.environ.update({**AGENT, **env, **rank.get("env", {})})
    sys.argv = [str(ROOT / "train.py"), *rank["argv"]]
    code = 1
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run(name: str, case: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """How the ranks of a case ended."""
    began, port = time.monotonic(), free_port()
    pids, files = {}, {}
    for number, rank in enumerate(case["ranks"]):
        files[number] = [folder / f"{name}.{number}.{what}" for what in ("out", "err")]
        env = {"RANK": str(number), "WORLD_SIZE": str(len(case["ranks"])), "MASTER_PORT": str(port)}
        env["GROUP_RANK"] = str(number)
        pids[start(rank, env, files[number])] = number
    found: dict[int, dict[str, Any]] = {}
    killed = "kill" not in case
    while pids and time.monotonic() - began < 60:
        if not killed and Path(case["when"]).exists():
            pid = next(pid for pid, rank in pids.items() if rank == case["kill"])
            os.kill(pid, signal.SIGKILL)
            began, killed = time.monotonic(), True
        for child in list(pids):
            pid, status = os.waitpid(child, os.WNOHANG)
            if not pid:
                continue
            seconds, number = time.monotonic() - began, pids.pop(pid)
            texts = [file.read_text() for file in files[number]]
            code = os.waitstatus_to_exitcode(status)
            found[number] = {
                "code": code, "stdout": texts[0], "stderr": texts[1], "seconds": seconds
            }  # fmt: skip
        time.sleep(0.02)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return [found.get(number, {"code": "hung"}) for number in range(len(case["ranks"]))]


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    import ninefold.main
    import ninefold.train.run  # noqa: F401

    asked, target = map(Path, sys.argv[1:])
    cases = json.loads(asked.read_text())
    ended = {name: run(name, case, target.parent) for name, case in cases.items()}
    target.write_text(json.dumps(ended))
