"""Imported first by the forkserver: ties it to the launcher's life.

The workers hold the write end of the pipe by which a forkserver notices its parent's end, so
without the kernel's signal it would live on with them, orphaned. A preloaded module can act in
the forkserver only while it is imported, so this one does.
"""

from ninefold.parent_death import follow_parent

follow_parent()
