"""The GitHub action: its steps are run here, as its runner would, on a toy project."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest
import yaml

from tests.bench import toy

ACTION = yaml.safe_load((toy.ROOT / "action.yml").read_text())
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]
RUN = {step["name"]: step for step in STEPS if "run" in step}
HISTORY, INSTALL, COMPARE, SUMMARY, COMMENT = RUN
EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}")
MARK = "<!-- ninefold bench -->"


def step(
    name: str, folder: Path, temporary: Path, **environment: str
) -> tuple[subprocess.CompletedProcess[str], dict[str, str]]:
    """Run a step in `folder`, as the runner does; its process, and what it has put out."""
    output, summary = temporary / "output", temporary / "summary"
    output.write_text("")
    known = {
        "GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(summary),
        "RUNNER_TEMP": str(temporary), "GITHUB_BASE_REF": "", "GITHUB_EVENT_NAME": "push",
        "GITHUB_ACTION_PATH": str(toy.ROOT), **dict.fromkeys(RUN[name].get("env", ()), ""),
    }  # fmt: skip
    script = temporary / "script.sh"
    script.write_text(RUN[name]["run"])
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)], cwd=folder,
        env={**os.environ, **known, **environment}, capture_output=True, text=True,
    )  # fmt: skip
    pairs = [line.partition("=") for line in output.read_text().splitlines()]
    return done, {key: value for key, _, value in pairs}


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """The runner's folder, with ninefold as the step before has installed it there."""
    programs = tmp_path / "runner" / "ninefold" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(sys.executable)
    (programs / "ninefold").symlink_to(Path(sysconfig.get_path("scripts"), "ninefold"))
    return tmp_path / "runner"


def test_each_step_is_bash_into_which_nothing_from_outside_is_pasted() -> None:
    assert ACTION["runs"]["using"] == "composite"
    for each in RUN.values():
        assert each["shell"] == "bash"
        assert subprocess.run(["bash", "-n"], input=each["run"], text=True).returncode == 0
        assert not EXPRESSION.search(each["run"]), each["name"]


def test_what_the_steps_use_is_declared_and_what_is_declared_is_used() -> None:
    used = EXPRESSION.findall(json.dumps(STEPS))
    inputs = {name for text in used for name in re.findall(r"inputs\.([\w-]+)", text)}
    assert inputs == ACTION["inputs"].keys()
    assert {name for name, each in ACTION["inputs"].items() if each.get("required")} == {"command"}
    assert all("default" in each or each.get("required") for each in ACTION["inputs"].values())
    ids = {each["id"] for each in STEPS if "id" in each}
    assert {name for text in used for name in re.findall(r"steps\.(\w+)\.", text)} == ids
    puts_out = {text for each in RUN.values() for text in re.findall(r'echo "(\w+)=', each["run"])}
    assert {name for text in used for name in re.findall(r"outputs\.(\w+)", text)} == puts_out
    for each in RUN.values():
        for name in re.findall(r"\$\{?([A-Z_]+)\b", each["run"].replace("FETCH_HEAD", "")):
            assert name.startswith(("GITHUB_", "RUNNER_")) or name in each["env"], name


def test_the_token_of_a_pull_request_from_a_fork_is_not_used_and_no_stranger_has_ours(
    tmp_path: Path, temporary: Path
) -> None:
    assert [name for name, each in RUN.items() if "TOKEN" in each.get("env", ())] == [COMMENT]
    condition = RUN[COMMENT]["if"]
    assert "github.event_name == 'pull_request' &&" in condition
    assert "pull_request.head.repo.full_name == github.repository" in condition
    toy.make(tmp_path / "project")
    done, put = step(
        HISTORY, tmp_path / "project", temporary, GITHUB_EVENT_NAME="pull_request_target"
    )
    assert (done.returncode, put) == (2, {})
    assert done.stdout.startswith("::error::event=pull_request_target: ")


@pytest.mark.parametrize(
    ("asked", "named", "commit"),
    [
        ({"GITHUB_BASE_REF": "main"}, "origin/main", "main"),
        ({"GITHUB_BASE_REF": "moved"}, None, "main~1"),
        ({}, "HEAD~1", "main"),
        ({"BASE": "v1"}, "v1", "v1"),
        ({"BASE": "moved"}, None, "moved"),
        ({"BASE": "HEAD~2"}, "HEAD~2", "main~1"),
    ],
)
def test_the_base_is_found_in_the_shallow_clone_that_a_workflow_has(
    tmp_path: Path, temporary: Path, asked: dict[str, str], named: str | None, commit: str
) -> None:
    project, clone = tmp_path / "project", tmp_path / "clone"
    toy.make(project, 0.04)
    toy.git(project, "switch", "--quiet", "--create", "moved", "v1")
    toy.commit(project, {"of others": ""})
    toy.git(project, "switch", "--quiet", "--create", "mine", "main")
    toy.commit(project, toy.with_layers(0.08))
    toy.git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{project}", "clone")
    done, put = step(HISTORY, clone, temporary, **asked)
    assert done.returncode == 0, done.stderr
    assert put["base"] == (named or toy.git(project, "rev-parse", commit))
    assert toy.git(clone, "rev-parse", put["base"]) == toy.git(project, "rev-parse", commit)


class Api(BaseHTTPRequestHandler):
    """The comments of GitHub's API: lists, makes and changes them, if the token may."""

    comments: ClassVar[list[dict[str, Any]]]
    allowed: ClassVar[bool]

    def answer(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        asked = json.loads(self.rfile.read(size)) if size else {}
        path, _, query = self.path.partition("?")
        code, said = 200, None
        if self.headers["Authorization"] != "Bearer secret" or not self.allowed:
            code = 403
        elif self.command == "GET" and path == "/repos/me/toy/issues/7/comments":
            said = self.comments[2 * int(query.rpartition("=")[2]) - 2 :][:2]
        elif self.command == "POST" and path == "/repos/me/toy/issues/7/comments":
            self.comments.append({"id": 1000, "user": {"type": "Bot"}, **asked})
        elif self.command == "PATCH" and path.startswith("/repos/me/toy/issues/comments/"):
            next(c for c in self.comments if str(c["id"]) == path.rpartition("/")[2]).update(asked)
        else:
            code = 404
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(said).encode())

    do_GET = do_POST = do_PATCH = answer  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def api() -> Iterator[str]:
    """Its address, with three comments that are not ours."""
    Api.allowed = True
    Api.comments = [
        {"id": 1, "user": {"type": "User"}, "body": f"{MARK} of a person"},
        {"id": 2, "user": {"type": "Bot"}, "body": f"of a bot\n{MARK}"},
        {"id": 3, "user": {"type": "Bot"}, "body": None},
    ]
    with ThreadingHTTPServer(("127.0.0.1", 0), Api) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_the_comment_is_written_once_then_replaced_and_where_it_may_not_be_is_left_out(
    tmp_path: Path, temporary: Path, api: str
) -> None:
    asked = {
        "FOLDER": str(tmp_path), "NUMBER": "7", "TOKEN": "secret", "GITHUB_API_URL": api,
        "GITHUB_REPOSITORY": "me/toy",
    }  # fmt: skip
    before = [dict(comment) for comment in Api.comments]
    assert step(COMMENT, tmp_path, temporary, **asked)[0].returncode == 0  # there is no answer
    assert Api.comments == before
    (tmp_path / "json.py").write_text("raise SystemExit('imported from the checkout')")
    for said in ("first", "second, of two µs"):
        (tmp_path / "bench.md").write_text(f"{MARK} {said}\n\n| a table |\n", encoding="utf-8")
        done, _ = step(COMMENT, tmp_path, temporary, **asked)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert Api.comments[:3] == before
        assert [comment["body"].partition("\n")[0] for comment in Api.comments[3:]] == [
            f"{MARK} {said}"
        ]
    Api.allowed = False
    done, _ = step(COMMENT, tmp_path, temporary, **asked)
    assert done.returncode == 0
    assert done.stdout.startswith("::notice::no comment was written, the summary is all: ")


def test_the_answer_is_appended_to_the_summary_if_there_is_one(
    tmp_path: Path, temporary: Path
) -> None:
    (temporary / "summary").write_text("of another step\n")
    for text in ("", "the answer\n"):
        if text:
            (tmp_path / "bench.md").write_text(text)
        done, _ = step(SUMMARY, tmp_path, temporary, FOLDER=str(tmp_path))
        assert done.returncode == 0
        assert (temporary / "summary").read_text() == f"of another step\n{text}"


@pytest.mark.slow
@pytest.mark.parametrize(("base", "code"), [("HEAD~1", 8), ("HEAD", 0)])
def test_a_slower_commit_fails_the_action_and_an_equal_one_passes(
    tmp_path: Path, temporary: Path, base: str, code: int
) -> None:
    toy.make(tmp_path / "project", 0.5)
    command = f"{sys.executable} scripts/train.py"
    asked = {"COMMAND": command, "MAX_SLOWDOWN": "10%", "MINUTES": "2"}
    done, put = step(COMPARE, tmp_path / "project", temporary, BASE=base, **asked)
    assert done.returncode == code, done.stdout + done.stderr
    folder = Path(put["folder"])
    assert folder.name == put["name"]
    assert json.loads((folder / "bench.json").read_text())["exit"] == code
    assert MARK in (folder / "bench.md").read_text().partition("\n")[0]
    assert toy.git(tmp_path / "project", "worktree", "list").count("\n") == 0
