"""The code sandbox: programs of responses against test cases, where nothing that a program does can make it right.

    worker ──socket──> supervisor ──pipes──> bwrap ──> runner ──fork──> the program with one test case
    (asyncio, in the   (one per slot,    (private pid, ipc, uts, net, user and mount namespaces; one per response)
    reward's actor)    outside, trusted)

Invariant: nothing inside is trusted. It gets a program and inputs and returns plain data; expected outputs never enter.
The supervisor compares, measures time and counts memory from outside, so a program that patches builtins, forges
messages or takes over its runner can only return data, and forged data is right only if it is the right answer. The
cost of a comparison is bounded, too.

An `AssertCase` is Python of the prompt file, and needs the response's functions. It runs in a second sandbox, that of
the tests; the supervisor forwards its calls to the program's sandbox, and results come back as plain data (`rpc`). So
the assertions never share an interpreter with the program either.

Invariant: a response is right when all its cases are; the first case that is not ends it, and its whole sandbox is
killed. Nothing of a sandbox outlives its response (pid namespace), and nothing of the supervisors outlives the worker.
"""
