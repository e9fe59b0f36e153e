"""train.py whose workers take long to start.

Multiprocessing runs the main script in each new worker, as a module, before anything of ours.
"""

import time
from pathlib import Path

if __name__ == "__mp_main__":
    Path("forked").touch()
    time.sleep(2)
else:
    from ninefold.main import main

    main("train")
