"""The Python interface: what a notebook or a script calls. `ninefold.NAME` imports it when used."""

from pathlib import Path

# In the folder of a comparison: its objects, what to know of them, and the options that name them.
FILE = Path("given") / "objects.bin"
NOTES = Path("given") / "notes.json"
OPTIONS = "conf"
