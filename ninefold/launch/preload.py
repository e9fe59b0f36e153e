"""Imported first by the forkserver: ties it to the launcher's life, and holds signals back.

The workers hold the write end of the pipe by which a forkserver notices its parent's end, so
without the kernel's signal it would live on with them, orphaned. A signal to a whole process group
must not end it either: its workers would die with it, before they could save. And a worker is to
receive a signal when it is ready to act on it: until then it is held back, not lost. A preloaded
module can act in the forkserver only while it is imported, so this one does.

It also puts off garbage collection, which takes a third of the time that the imports after it take
and finds nothing: the workers turn it on again.
"""

import gc
import signal

from ninefold.signals import SIGNALS, follow_parent

follow_parent()
gc.disable()
signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
