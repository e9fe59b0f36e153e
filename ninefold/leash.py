"""Imported first by the forkserver: ties it to the launcher's life, and its children's quiet end.

The workers hold the write end of the pipe by which a forkserver notices its parent's end, so
without the kernel's signal it would live on with them, orphaned. And a child that Ctrl-C reaches
before or after its work would print a traceback: it is to end without a word, as the launcher
speaks for it. A preloaded module can act in the forkserver only while it is imported, so this one
does.
"""

import signal

from ninefold.parent_death import follow_parent

follow_parent()
signal.signal(signal.SIGINT, signal.SIG_DFL)
