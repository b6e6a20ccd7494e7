"""The code sandbox: programs of responses against test cases, where nothing that a program does can make it right.

    worker ──socket──> keeper ──pipes──> bwrap ──> runner ──fork──> the program with one test case
    (asyncio, in the   (one per slot,    (private pid, ipc, uts, net, user and mount namespaces; one per response)
    reward's actor)    outside, trusted)

Invariant: what is inside is not trusted with anything. It is given a program and inputs, and answers with plain data;
expected outputs never enter. The keeper has answers compared, keeps time and counts memory from outside, so a program
that patches builtins, forges its messages or takes over its runner can only answer, and a forged answer is right only
if it is the right answer. What an answer costs to compare is bounded, too.

An `AssertCase` is Python of the prompt file, and needs the response's functions. It runs in a sandbox of its own, the
tester, whose calls the keeper carries to the program's sandbox and whose results come back as plain data (`remote`). So
the assertions never share an interpreter with the program either.

Invariant: a response is right when all its cases are; the first case that is not ends it, and its whole sandbox is
killed. Nothing of a sandbox outlives its response (pid namespace), and nothing of the keepers outlives the worker.
"""
