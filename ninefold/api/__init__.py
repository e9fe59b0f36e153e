"""What programs of other people call: `import ninefold`, then `ninefold.time_steps(...)`."""

from pathlib import Path

# In the folder of a comparison: its objects, what to know of them, and the options that name them.
FILE = Path("given") / "objects.bin"
NOTES = Path("given") / "notes.json"
OPTIONS = "conf"
