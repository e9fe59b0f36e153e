"""Revisions are checked out beside each other, and nothing of the user's is touched or left."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ninefold.bench import __main__ as bench
from ninefold.bench import output
from ninefold.bench.__main__ import parser
from ninefold.bench.commands import prepared, set_up_copies
from ninefold.bench.guardian import guarded
from ninefold.bench.revisions import (
    Copy,
    check_out,
    checkout,
    cleanup_commands,
    foreign_code,
    set_up,
)
from ninefold.diff import __main__ as diff
from ninefold.errors import ConfigError, ResourceError
from tests.bench import toy
from tests.conftest import Shell, wait_until

WHERE = "import toy; print(toy.__file__)"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A toy project of two commits, in which the test works."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    toy.make(tmp_path / "project", 0.08)
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def state(project: Path) -> tuple[str, ...]:
    """What git has of the user's: branches and tags, worktrees, index, what differs from it."""
    asked = ("for-each-ref", "worktree list", "ls-files --stage", "stash list", "status --short")
    return tuple(toy.git(project, *words.split()) for words in asked)


def run(copy: Copy, *argv: str | Path, **variables: str) -> str:
    """What a command prints in a copy."""
    done = subprocess.run(
        list(map(str, argv)), cwd=copy.folder, env={**os.environ, **variables},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()


@contextmanager
def copies(*revisions: str, links: Sequence[str] = (), setup: str | None = None) -> Iterator[Any]:
    """A copy of each revision in bench/now, while the block runs."""
    of = revisions, checkout(revisions), Path("bench/now")
    with guarded(Path(tempfile.mkdtemp()), cleanup_commands(*of)):
        found = check_out(*of, links)
        for copy in found:
            set_up(copy, copy.variables, setup)
        yield found


def refused(*revisions: str, **options: Any) -> str:
    """Why there are no copies of these revisions."""
    with pytest.raises(ConfigError) as raised, copies(*revisions, **options):
        pass
    return str(raised.value)


def test_each_copy_has_the_files_of_its_revision_and_is_removed_also_after_an_error(
    project: Path,
) -> None:
    before = state(project)

    def block() -> None:
        with copies("v1", "HEAD", "v1") as found:
            assert [copy.name for copy in found] == ["v1", "HEAD", "v1"]
            for copy, layers in zip(found, (50, 54, 50), strict=True):
                assert f"LAYERS = {layers}" in (copy.root / "src/toy/training.py").read_text()
                assert toy.git(copy.root, "rev-parse", "HEAD") == copy.commit
                assert toy.git(copy.root, "branch", "--show-current") == ""
                assert (copy.original, copy.folder) == (project, copy.root)
            assert len({copy.root for copy in found}) == 3
            assert len({len(str(copy.root)) for copy in found}) == 1
            (found[0].root / "written by the command").touch()
            (found[1].root / ".git").unlink()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        block()
    assert not (project / "bench" / "now").exists()
    assert state(project) == before


def test_the_working_tree_is_compared_as_it_is_and_no_branch_index_or_file_is_touched(
    project: Path,
) -> None:
    training = project / "src/toy/training.py"
    training.write_text("staged")
    toy.git(project, "add", "--all")
    training.write_text("as it is")
    (project / "untracked file").write_text("too")
    (project / "scripts" / "train.py").unlink()
    (project / "data").mkdir()
    (project / "data" / "x").touch()
    (project / ".gitignore").write_text("data/\n")  # and no longer bench/
    before, index = state(project), (project / ".git" / "index").read_bytes()
    with output.own_folder(None) as earlier:
        (earlier / "1.log").touch()
    with output.own_folder(None) as now, copies(".", "HEAD") as (copy, head):
        (now / "2.log").touch()
        assert (copy.root / "src/toy/training.py").read_text() == "as it is"
        names = {path.name for path in copy.root.iterdir()}
        assert "untracked file" in names
        assert not names & {"data", "bench"}
        assert not (copy.root / "scripts").exists()
        assert "LAYERS = 54" in (head.root / "src/toy/training.py").read_text()
        assert toy.git(copy.root, "rev-parse", "HEAD~1") == head.commit
    assert state(project) == before
    assert (project / ".git" / "index").read_bytes() == index
    assert training.read_text() == "as it is"


def test_modules_are_the_copys_with_its_variables_and_an_editable_installation_is_seen_without(
    project: Path,
) -> None:
    python = toy.installed(project, project / ".venv")
    (packages,) = (project / ".venv").glob("lib/python*/site-packages")
    (packages / "installed.py").touch()
    with copies("v1", ".") as found:
        for copy in found:
            lied, own = (
                run(copy, python, "-c", WHERE),
                run(copy, python, "-c", WHERE, **copy.variables),
            )
            assert Path(lied).is_relative_to(project / "src")
            assert Path(own).is_relative_to(copy.root / "src")
            others = [own, str(packages / "installed.py"), os.__file__, "scripts/train.py"]
            assert foreign_code(copy, others) is None
            assert str(foreign_code(copy, [*others, lied])) == (
                f"error: revisions={copy.name}: toy was imported from the checkout, not from the "
                "revision's copy; both sides would run the same code; --env with an installation "
                "of each"
            )
        assert foreign_code(found[0], [str(found[1].root / "src/toy/__init__.py")])


def test_neither_what_was_linked_into_a_copy_nor_the_hook_of_bench_is_the_originals_code(
    project: Path,
) -> None:
    toy.commit(project, {".gitignore": "*.so\nbench/\n"})
    (project / "src" / "toy" / "compiled.so").touch()
    with copies("HEAD", links=["src/toy/compiled.so"]) as (copy,):
        linked = copy.root / "src" / "toy" / "compiled.so"
        assert linked.is_symlink()
        assert foreign_code(copy, [str(linked), "src/toy/compiled.so"]) is None
        assert foreign_code(copy, [str(project / "src" / "toy" / "compiled.so")])
        of_bench = replace(copy, original=toy.ROOT)
        assert foreign_code(of_bench, [str(toy.ROOT / "ninefold/bench/inject/a.py")]) is None
        assert foreign_code(of_bench, [str(toy.ROOT / "ninefold/a.py")])


def test_what_pythonpath_has_of_the_original_is_the_copys_first(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{project}/lib:/elsewhere")
    with copies("HEAD") as (copy,):
        path = copy.variables["PYTHONPATH"].split(os.pathsep)
    own = [copy.root / "src", copy.root, copy.root / "lib"]
    assert path == [*map(str, own), f"{project}/lib", "/elsewhere"]


def test_a_command_runs_in_the_folder_of_the_copy_that_bench_was_started_in(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy.commit(project, {"packages/one/src/one.py": "", "packages/one/train.py": "import one"})
    monkeypatch.chdir(project / "packages" / "one")
    with copies("HEAD") as (copy,):
        assert copy.folder == copy.root / "packages" / "one"
        run(copy, sys.executable, "train.py", **copy.variables)
    assert "revisions=v1: it has no folder packages/one; " in refused("v1")
    assert toy.git(project, "worktree", "list").count("\n") == 0


def test_what_git_does_not_have_is_linked_and_stays_when_the_copies_are_removed(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy.commit(project, {".gitignore": "*.bin\n.venv/\nbench/\n", "data/README": "in git"})
    for name in ("data/x.bin", "data/deep/y.bin", "weights.bin"):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(name)
    links = ["data", str(project / "weights.bin")]
    with copies("v1", "HEAD", links=links) as found:
        for copy in found:
            for name in ("data/x.bin", "data/deep/y.bin", "weights.bin"):
                assert (copy.root / name).read_text() == name
        assert (found[0].root / "data").is_symlink()
        assert not (found[1].root / "data" / "README").is_symlink()
    assert (project / "data/deep/y.bin").read_text() == "data/deep/y.bin"
    for link in ("nothing", ".", "..", "/etc"):
        assert f"error: link={link}: there is no such thing; " in refused("HEAD", links=(link,))


def test_setup_runs_in_each_copy_and_where_it_fails_its_output_is_named(project: Path) -> None:
    setup = f'echo "$PYTHONPATH" > built; {sys.executable} -c "{WHERE}"'
    with copies("v1", "HEAD", setup=setup) as found:
        for copy in found:
            assert (copy.root / "built").read_text().strip() == copy.variables["PYTHONPATH"]
            log = Path(f"{copy.root}.setup.log")
            assert log.read_text().startswith(f"{copy.root}/src/toy")
    error = refused("v1", setup="echo no compiler; exit 3")
    assert error.startswith("error: setup=echo no compiler; exit 3: it ended with code 3 in the ")
    log = Path(error.rpartition("; see ")[2])
    assert log.read_text() == "no compiler\n"
    assert toy.git(project, "worktree", "list").count("\n") == 0


def test_setup_runs_in_the_environment_of_its_command_once_all_options_are_right(
    project: Path,
) -> None:
    (project / "env" / "bin").mkdir(parents=True)
    (project / "env" / "bin" / "python").symlink_to(sys.executable)
    typed = ["--revisions", "v1", "HEAD", f"--setup=command -v python >> {project}/built"]
    scored = ("--score={out}/m.json:loss", "--better=less", "--margin=1")
    for options, words in (
        (["--env=nowhere"], "--env=nowhere: it has no bin/python"),
        (scored, r"command=python train.py: it has no \{out\}; "),
    ):
        with pytest.raises(ConfigError, match=words):
            bench.run([*typed, *options, "python train.py"])
    with pytest.raises(ConfigError, match="--resume=1: so many commands were given; "):
        diff.run([*typed, "--resume", "echo"])
    assert not (project / "built").exists()
    made = parser().read([*typed[:3], "--setup=mkdir build", "--cwd=build", "python train.py"])
    with prepared(made) as (_, given):
        set_up_copies(given, made.setup)
        assert [each.folder.name for each in given] == ["build", "build"]
    made = parser().read([*typed, "--env=env", "python train.py"])
    with prepared(made) as (_, given):
        set_up_copies(given, made.setup)
        assert (project / "built").read_text() == f"{project}/env/bin/python\n" * 2


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("mian", "no such revision; main, v1, HEAD, . are allowed; did you mean main?"),
        ("--all", "no such revision; main, v1, HEAD, . are allowed; name one of them"),
        ("v1..HEAD", "no such revision; main, v1, HEAD, . are allowed; name one of them"),
    ],
)
def test_a_revision_that_there_is_not_is_told_with_those_that_there_are(
    project: Path, name: str, error: str
) -> None:
    assert refused("HEAD", name) == f"error: revisions={name}: {error}"
    assert not (project / "bench").exists()


def test_a_branch_of_a_remote_is_named_and_so_is_what_a_shallow_clone_lacks(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy.git(project, "branch", "other")
    for name, *options in (("whole",), ("shallow", "--depth", "1", "--no-single-branch")):
        toy.git(tmp_path, "clone", "--quiet", *options, f"file://{project}", name)
        monkeypatch.chdir(tmp_path / name)
        error = refused("other")
        assert "did you mean origin/other?" in error or name == "shallow"
        assert ("this clone is shallow: git fetch --unshallow" in error) == (name == "shallow")


def test_where_there_is_no_repository_or_no_git_the_error_says_so(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    none = f"error: revisions=main HEAD: {tmp_path} is in no git repository (fatal: not a"
    assert none in refused("main", "HEAD")
    monkeypatch.chdir(project / ".git")
    assert "is in no git repository" in refused("HEAD")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "error: revisions=HEAD: git is missing; " in refused("HEAD")


def test_a_hook_that_calls_bench_lends_it_nothing_and_no_hook_is_called(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = project / ".git" / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/called\n")
    hook.chmod(0o755)
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"):
        monkeypatch.setenv(name, str(tmp_path / "of a hook"))
    (project / "new").touch()
    with copies(".", "v1", setup="git log --oneline") as found:
        assert (found[0].root / "new").exists()
        assert Path(f"{found[1].root}.setup.log").read_text().count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["project"]


def test_submodules_are_warned_of_unless_a_setup_may_check_them_out(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toy.make(tmp_path / "part")
    allowed = ("-c", "protocol.file.allow=always")
    toy.git(project, *allowed, "submodule", "--quiet", "add", str(tmp_path / "part"))
    toy.commit(project, {})
    with copies("v1", "HEAD"):
        warning = "warning: revisions=HEAD: it has submodules, and its copy is without them"
        assert capsys.readouterr().err.startswith(warning)
    with copies("HEAD", setup=f"git {' '.join(allowed)} submodule update --init") as (copy,):
        assert (copy.root / "part" / "src").exists()
        assert capsys.readouterr().err == ""
    assert toy.git(project, "worktree", "list").count("\n") == 0


def test_a_folder_that_was_removed_is_no_obstacle(project: Path) -> None:
    with copies("v1") as (copy,):
        (copy.root / "src").rename(project / "moved")
        shutil.rmtree(copy.root)
        with copies("v1"):
            pass


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("revision", ["HEAD", "."])
def test_filters_that_git_runs_end_with_the_bench_whatever_ends_it(
    project: Path, shell: Shell, number: signal.Signals, revision: str
) -> None:
    """HEAD is checked out through `smudge`, and . is read through `clean`."""
    began = project / ".git" / "began"
    toy.commit(project, {".gitattributes": "*.bin filter=slow\n", "data.bin": "as it is"})
    for what in ("smudge", "clean"):
        toy.git(project, "config", f"filter.slow.{what}", f"touch {began}; sleep 1000; cat")
    (project / "data.bin").write_text("changed")
    shell.folder = project
    bench = shell.start("-m", "ninefold", "bench", "--revisions", "v1", revision, "--", "true")
    wait_until(began.exists, bench)
    bench.send_signal(number)
    bench.communicate()
    wait_until(lambda: not shell.processes(), seconds=20)
    assert toy.git(project, "worktree", "list").count("\n") == 0


@pytest.mark.parametrize(
    ("victim", "code"),
    [
        ("os.getpid()", -signal.SIGKILL),
        ("int(Path(f'/proc/self/task/{os.getpid()}/children').read_text())", 0),  # the guardian
    ],
)
def test_the_copies_of_a_process_that_was_killed_are_removed(
    victim: str, code: int, project: Path, tmp_path: Path
) -> None:
    program = (
        "import os, sys\nfrom pathlib import Path\n"
        "from ninefold.bench.guardian import guarded\n"
        "from ninefold.bench.revisions import check_out, checkout, cleanup_commands\n"
        "revisions = ['v1', 'HEAD']\n"
        "of = revisions, checkout(revisions), Path('bench/now')\n"
        "with guarded(Path(sys.argv[1]), cleanup_commands(*of)):\n"
        "    check_out(*of)\n"
        f"    os.kill({victim}, {int(signal.SIGKILL)})\n"
    )
    (tmp_path / "scratch").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(toy.ROOT)}
    argv = [sys.executable, "-c", program, str(tmp_path / "scratch")]
    assert subprocess.run(argv, env=environment).returncode == code
    wait_until(lambda: not (tmp_path / "scratch").exists())
    assert toy.git(project, "worktree", "list").count("\n") == 0
    assert not (project / "bench" / "now").exists()


@pytest.mark.parametrize("said", [os.strerror(errno.ENOSPC), "error: unable to write file x"])
def test_a_full_disk_under_a_copy_is_a_lack_of_room_and_not_a_mistake_of_the_users(
    project: Path, said: str
) -> None:
    toy.commit(project, {".gitattributes": "*.bin filter=full\n", "data.bin": "as it is"})
    full = f"echo '{said}' >&2; exit 1"  # as git says it of what it writes
    toy.git(project, "config", "filter.full.smudge", full)
    toy.git(project, "config", "filter.full.required", "true")
    with (
        pytest.raises(ResourceError, match=f"^error: git=worktree: {said.removeprefix('error: ')}"),
        copies("HEAD"),
    ):
        pass
