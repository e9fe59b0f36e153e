"""Have a wheel hold conf/, the studies and the extensions, which a clone has beside the package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

PATTERNS = (
    *("conf/**/*.yaml", "experiments/*.yaml", "experiments/*/published.csv"),
    *("extensions/*.py", "extensions/*/*.py", "extensions/*/conf/*/*.yaml"),  # no tests
    "extensions/*/*.txt",
    "extensions/*/inject/*.py",
)


class BuildPy(build_py):
    """Copy what PATTERNS match into the package; nothing for an editable installation."""

    def run(self) -> None:
        super().run()
        for source, target in self._copies():
            self.mkpath(str(Path(target).parent))
            self.copy_file(source, target)

    def get_source_files(self) -> list[str]:
        """With these files: they are part of an sdist."""
        return [*super().get_source_files(), *(source for source, _ in self._found())]

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        outputs = super().get_outputs(include_bytecode)
        return [*outputs, *(target for _, target in self._copies())]

    def get_output_mapping(self) -> dict[str, str]:
        mapping = super().get_output_mapping()
        return {**mapping, **{target: source for source, target in self._copies()}}

    def _copies(self) -> Iterator[tuple[str, str]]:
        """Each file that is copied, and where to."""
        return iter(()) if self.editable_mode else self._found()

    def _found(self) -> Iterator[tuple[str, str]]:
        package = Path(self.build_lib, "ninefold")
        for pattern in PATTERNS:
            for path in sorted(Path().glob(pattern)):
                yield path.as_posix(), (package / path).as_posix()


setup(cmdclass={"build_py": BuildPy})
