"""Deliberate bugs: each is a patch of the package, with the worlds that must find it.

A patch wraps a method or replaces a function while the bug is in, and none names source text: a bug moves with what it
patches. Where a machine's commands or snapshots can show a bug, the patch is made there.
"""

from tests.fuzz.bugs import asynchronous, batching, elastic, evaluating, machines, runtime

BUGS = (*asynchronous.BUGS, *batching.BUGS, *elastic.BUGS, *evaluating.BUGS, *machines.BUGS, *runtime.BUGS)
