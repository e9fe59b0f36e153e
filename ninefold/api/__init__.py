"""What programs of other people call: `import ninefold`, then `ninefold.time_steps(...)`.

- `time_steps` (in `steps`) runs in the caller's process. `session` leads a comparison, `workers`
  stops what reads ahead.
- `compare` starts a study in another process. `objects` checks what is given, `capsule`
  puts it into a file, `running` and `child` run the command, `show` says errors in the
  words of the caller, `answer` reads what it found. In the processes of the study `parts` and
  `data` take the objects from that file.
- `load` returns the trained network of a run.
"""

from pathlib import Path

# In the folder of a comparison: its objects, what to know of them, the arguments of its command,
# and the options that name the objects.
FILE = Path("given") / "objects.bin"
NOTES = Path("given") / "notes.json"
COMMAND = Path("given") / "command.json"
OPTIONS = Path("given") / "conf"
