"""Standard streams and the end of a program are what they are in plain Python."""

import pytest

from tests.rewards.sandbox.programs import reasons_of

ECHO = {
    "test_cases": [{"input": "3 4\n", "output": "3 4"}, {"input": "", "output": ""}, {"input": "5\n", "output": "5"}],
}
PLUS = {"entry_point": "f", "test_cases": [{"args": [1], "expected": 2}]}

READ = {
    "by the name": "print(open('/dev/stdin').read())",
    "by the name, as bytes": "import sys; sys.stdout.buffer.write(open('/dev/stdin', 'rb').read())",
    "by the number": "print(open(0).read())",
    "by the name of the number": "print(open('/dev/fd/0').read())",
    "by the system's open": "import os; print(os.read(os.open('/dev/stdin', os.O_RDONLY), 99).decode())",
    "by a path": "import pathlib; print(pathlib.Path('/dev/stdin').read_text())",
    "by fileinput": "import fileinput; print(*fileinput.input('/dev/stdin'))",
    "by default": "import fileinput; print(*fileinput.input())",
    "in place of it": "import sys; sys.stdin = open('/dev/stdin'); print(sys.stdin.read())",
    "in place of it, by the number": "import sys; sys.stdin = open(0)\nfor line in sys.stdin: print(line)",
    "from its end": "import os; assert os.path.exists('/dev/stdin'); print(open('/dev/stdin').read())",
    "in lines": "for line in open('/dev/stdin'): print(*map(int, line.split()))",
    "by a child": (
        "import subprocess, sys; sys.stdout.flush()\n"
        "subprocess.run([sys.executable, '-S', '-c', \"print(open('/dev/stdin').read())\"])"
    ),
}
WRITTEN = {
    "by the name": "open('/dev/stdout', 'w').write({})",
    "by the name of the number": "open('/dev/fd/1', 'w').write({})",
    "by the number": "open(1, 'w').write({})",
    "by the system's open": "import os; os.write(os.open('/dev/stdout', os.O_WRONLY), {}.encode())",
    "in place of it": "import sys; sys.stdout = open('/dev/stdout', 'w'); print({})",
    "by print": "print({}, file=open('/dev/stdout', 'a'))",
    "beside errors": "print('x', file=open('/dev/stderr', 'w')); open('/dev/fd/2', 'w').write('x'); print({})",
}
ENDS = {
    "exit()": "print(input()); exit()",
    "exit(0)": "print(input()); exit(0)",
    "quit()": "print(input()); quit()",
    "quit in a function": "def main():\n    print(input())\n    quit()\nmain()",
    "sys.exit()": "import sys; print(input()); sys.exit()",
    "exit when there is no more": "try:\n    while True: print(input())\nexcept EOFError: exit()",
    "a child's exit()": (
        "import subprocess, sys\n"
        "assert subprocess.run([sys.executable, '-c', 'exit(3)']).returncode == 3\nprint(input())"
    ),
}
ENDS_OF_STREAMS = {
    "closed": "import sys; print(input()); sys.stdout.close()",
    "flushed, and none": "import sys; print(input()); sys.stdout.flush(); sys.stdout = None",
    "left open, by the name": "f = open('/dev/stdout', 'w'); f.write(input())",
    "left open, by the number": "f = open(1, 'w'); print(input(), file=f)",
    "left open, by the system": "import os; f = os.fdopen(1, 'w'); f.write(input())",
    "left open in a cycle": "f = open(1, 'w'); f.write(input()); c = [f]; c.append(c)",
    "left open in a function that exits": "def main():\n    f = open(1, 'w'); f.write(input())\n    exit()\nmain()",
    "replaced, and written": (
        "import io, sys; out, sys.stdout = sys.stdout, io.StringIO(); print(input()); out.write(sys.stdout.getvalue())"
    ),
    "detached": "import io, sys; sys.stdout = io.TextIOWrapper(sys.stdout.detach()); print(input())",
    "without a flag of its end": (
        "import sys\nclass Out:\n    write, flush = sys.stdout.write, sys.stdout.flush\n"
        "sys.stdout = Out(); print(input())"
    ),
    "written by an object's end": "class A:\n    def __del__(self): print(self.word)\na = A(); a.word = input()",
}
GUARD = "import os\nif not os.fstat(0).st_size: raise SystemExit\n"


@pytest.mark.parametrize("isolation", ["bubblewrap", "rlimits"])
async def test_streams_can_be_opened_by_name_and_exit_ends_a_program_well(isolation, tmp_path):
    programs = {f"read {how}": source for how, source in READ.items()}
    programs |= {f"written {how}": source.format("open(0).read()") for how, source in WRITTEN.items()}
    programs |= {f"ends by {how}": GUARD + source for how, source in ENDS.items()}
    programs |= {f"a stream {how}": GUARD + source for how, source in ENDS_OF_STREAMS.items()}
    reasons = await reasons_of(tmp_path, [(ECHO, source) for source in programs.values()], isolation=isolation)
    assert dict(zip(programs, reasons, strict=True)) == dict.fromkeys(programs, "correct")


async def test_exit_with_a_code_is_an_error_and_in_a_function_no_value(tmp_path):
    cases = [
        (ECHO, "print(open(0).read()); exit(1)"),
        (ECHO, "print(open(0).read()); quit('no')"),
        (PLUS, "def f(x): exit()"),
        (PLUS, "def f(x): return x + 1 + len(open('/dev/stdin').read())"),
        (PLUS, "import sys\ndef f(x):\n    sys.stdout.close()\n    return x + 1"),
    ]
    assert await reasons_of(tmp_path, cases) == ["error", "error", "error", "correct", "correct"]


async def test_a_program_has_a_file_that_it_can_read(tmp_path):
    program = "import os\nprint(os.path.basename(__file__), open(__file__).read())"
    case = {"input": "", "output": f"solution.py {program}"}
    assert await reasons_of(tmp_path, [({"test_cases": [case]}, program)]) == ["correct"]


async def test_what_a_program_makes_of_the_files_of_its_streams_harms_only_itself(tmp_path):
    programs = [
        "import os\nprint(open(0).read())\nos.unlink('/tmp/.stdin')",
        "import os\nprint(open(0).read())\nos.unlink('/tmp/.stdin')\nos.symlink('/dev/full', '/tmp/.stdin')",
        "import os\nprint(open(0).read())\nos.unlink('/tmp/.stdout')",
        "import os\nos.unlink('/tmp/.stdin')\nos.mkdir('/tmp/.stdin')\nprint('3 4')",
        "print(open(0).read())",
    ]
    reasons = await reasons_of(tmp_path, [(ECHO, each) for each in programs], num_workers=1)
    assert reasons == ["correct", "correct", "error", "error", "correct"]
