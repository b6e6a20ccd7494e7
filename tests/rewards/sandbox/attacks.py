"""Programs that try to be right without being it, to see what is not theirs, or to harm the machine.

Every test case expects a secret. It lies in a file outside the sandbox, in the environment of the sandbox's supervisor, and
is told by a server of this machine. So a program that reaches any of these would be right, and none is. What a test must
fill in stands in angle brackets.
"""
# ruff: noqa: E501 a program is one line of the file where it can be

FUNCTION = {
    # forging the result
    "always equal": "class E:\n def __eq__(s, o): return True\n __hash__ = None\ndef f(x): return E()",
    "equal subclass": "class E(str):\n def __eq__(s, o): return True\n def __hash__(s): return 0\ndef f(x): return E('a')",
    "equal number": "class E(float):\n def __eq__(s, o): return True\n def __float__(s): return 1.0\ndef f(x): return E(1)",
    "lying class": "class E:\n __class__ = str\n def __eq__(s, o): return True\ndef f(x): return E()",
    "lying list": "class E(list):\n def __eq__(s, o): return True\n def __len__(s): return 1\ndef f(x): return E()",
    "exit well": "import sys\ndef f(x): sys.exit(0)",
    "exit hard": "import os\ndef f(x): os._exit(0)",
    "exit while loading": "import os\nos._exit(0)",
    "patched builtins": (
        "import builtins, math, sys\n"
        "for name in ('isinstance', 'type', 'len', 'all', 'any', 'zip', 'str'): setattr(builtins, name, lambda *a, **k: True)\n"
        "def f(x): return True"
    ),
    "patched runner": (
        "import sys, gc\n"
        "for o in gc.get_objects():\n"
        "  if type(o) is dict and 'encode' in o and '_send' in o: o['encode'] = lambda *a: '[[\"secret\"]]'\n"
        "def f(x): return 1"
    ),
    "forged frames": (
        "import os\n"
        "for n in range(3, 20):\n"
        "  for body in (b'V\\0\\0\\0\\4true', b'E\\0\\0\\0\\1' + b'0', b'{\"reason\": \"correct\"}\\n'):\n"
        "    try: os.write(n, body)\n"
        "    except OSError: pass\n"
        "def f(x): return None"
    ),
    "huge frame": "import os\ndef f(x):\n for n in range(3, 20):\n  try: os.write(n, b'V\\xff\\xff\\xff\\xff')\n  except OSError: pass",
    "malformed answer": (
        "import os\ndef f(x):\n for n in range(3, 20):\n"
        "  try: os.write(n, b'V\\0\\0\\0\\5{\"t\":')\n  except OSError: pass\n os._exit(0)"
    ),
    "takes the runner's place": "import os, signal\ndef f(x):\n os.kill(os.getppid(), signal.SIGKILL)\n while True: pass",
    "imports the grader": (
        "import sys\nimport rollpacker.rewards.sandbox.comparison as c\nc.is_one_of = lambda *a: True\ndef f(x): return 1"
    ),
    "imports tests": "import tests.rewards.sandbox.attacks as a\ndef f(x): return a",
    "patched atexit": "import atexit, os\natexit.register(os._exit, 0)\ndef f(x): return 0",
    "looks at its callers": (
        "import sys\ndef f(x):\n"
        " frame, seen = sys._getframe(), []\n"
        " while frame: seen.append(repr(frame.f_locals)); frame = frame.f_back\n return ''.join(seen)"
    ),
    "deep value": "def f(x):\n v = []\n for _ in range(100000): v = [v]\n return v",
    "value in itself": "def f(x):\n v = []\n v.append(v)\n return v",
    "wide value": "def f(x): return [0] * 10**7",
    "raises always": "class E(BaseException): pass\ndef f(x): raise E",
    # what a program may use up
    "huge int": "def f(x): return 10 ** 10 ** 9",
    "huge text of an int": "def f(x): return 9 ** 500000",
    "recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef f(x): return f(x) + 1",
    "recursion in C": "import sys\nsys.setrecursionlimit(10**9)\ndef f(x):\n v = ()\n for _ in range(10**6): v = (v,)\n return hash(v)",
    "memory": "def f(x):\n v = []\n while True: v.append(bytearray(1 << 20))",
    "memory of a tree": (
        "import os, time\ndef f(x):\n for _ in range(8):\n  if os.fork() == 0: break\n v = bytearray(48 << 20)\n time.sleep(1000)"
    ),
    "shared memory": "import mmap, time\ndef f(x):\n m = mmap.mmap(-1, 200 << 20)\n m.write(b'x' * (200 << 20))\n time.sleep(1000)",
    "memfd": "import os\ndef f(x):\n n = os.memfd_create('a')\n while True: os.write(n, bytes(1 << 20))",
}

STDIN = {
    "prints what is expected": "print('correct'); print('expected'); print('{\"reward\": 1.0}'); print('V'); print('secret')",
    "reads the file": "print(open('<file>').read())",
    "reads the environment": "import os; print(os.environ.get('ROLLPACKER_SECRET'), dict(os.environ))",
    "reads the parent's environment": "import os; print(open(f'/proc/{os.getppid()}/environ').read())",
    "reads the first process": "print(open('/proc/1/environ').read())",
    "mounts proc": (
        "import ctypes, os; l = ctypes.CDLL(None); l.unshare(0x10000000); os.makedirs('/tmp/p')\n"
        "print(l.mount(b'proc', b'/tmp/p', b'proc', 0, None)); print(open('/tmp/p/1/environ').read())"
    ),
    "asks the server": (
        "import socket\ns = socket.create_connection(('127.0.0.1', <port>), 1)\nprint(s.recv(99).decode())"
    ),
    "asks the server by another family": (
        "import socket\ns = socket.socket(socket.AF_VSOCK)\ns.connect((1, <port>))\nprint(s.recv(99).decode())"
    ),
    "asks by netlink": "import socket\ns = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)\nprint(s)",
    "writes outside": "open('<outside>', 'w').write('x')\nprint(1)",
    "writes in the root": "open('/x', 'w').write('x'); print(1)",
    "writes into Python": "import os, sys\nopen(os.__file__, 'a').write('x'); print(1)",
    "leaves by chroot": "import os\nos.chroot('/tmp'); print(1)",
    "traces its parent": (
        "import ctypes, os\nl = ctypes.CDLL(None, use_errno=True)\nr = l.ptrace(16, os.getppid(), 0, 0)\n"
        "print(r, ctypes.get_errno())"
    ),
    "reads its parent's memory": (
        "import ctypes, os\nl = ctypes.CDLL(None, use_errno=True)\nprint(l.process_vm_readv(os.getppid(), 0, 0, 0, 0, 0))"
    ),
    "kills everybody": "import os, signal\nos.kill(-1, signal.SIGKILL)\nprint(1)",
    "kills what it can count": (
        "import os, signal\nfor pid in range(1, 70000):\n  try: os.kill(pid, signal.SIGKILL)\n  except OSError: pass"
    ),
    "bigger limits": "import resource\nresource.setrlimit(resource.RLIMIT_NPROC, (9999, 9999))\nprint(1)",
    "limits of the runner": "import resource, os\nresource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (0, 0))",
    # what a program may use up
    "loop": "while True: pass",
    "loop deaf to signals": (
        "import signal\nfor n in range(1, 32):\n  try: signal.signal(n, signal.SIG_IGN)\n  except (OSError, ValueError): pass\n"
        "while True: pass"
    ),
    "loop that catches all": "while True:\n  try:\n    while True: pass\n  except BaseException: pass",
    "loop in C": "sum(iter(int, 1))",
    "loop in compiling": "eval('(' * 90 + '9**9**9**9' + ')' * 90)",
    "loop in a regular expression": "import re\nre.match('(a+)+$', 'a' * 60 + 'b')",
    "sleep": "import time\ntime.sleep(10**6)",
    "sleep in a thread": "import threading, time\nthreading.Thread(target=time.sleep, args=(10**6,)).start()",
    "stop": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "fork bomb": "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass",
    "double fork and session": (
        "import os\nif os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0:\n    for n in range(20):\n"
        "      try: os.close(n)\n      except OSError: pass\n    while True: pass\n  os._exit(0)\nos.wait()\nprint(1)"
    ),
    "children that nobody waits for": (
        "import os, signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\nwhile True:\n  try:\n    if os.fork() == 0:\n"
        "      sum(range(10**6)); os._exit(0)\n  except OSError: pass"
    ),
    "threads": (
        "import threading, time\nwhile True:\n  try: threading.Thread(target=time.sleep, args=(10**6,)).start()\n"
        "  except RuntimeError: pass"
    ),
    "descriptors": "import os\nv = []\nwhile True: v.append(os.open('/dev/null', os.O_RDONLY))",
    "output": "import os\nwhile True: os.write(1, b'x' * 65536)",
    "errors": "import sys\nwhile True: sys.stderr.write('x' * 65536)",
    "disk": "v = open('/tmp/a', 'wb')\nwhile True: v.write(bytes(1 << 20))",
    "disk in many files": (
        "import itertools\nfor n in itertools.count():\n  with open(f'/tmp/{n}', 'wb') as v: v.write(bytes(1 << 20))"
    ),
    "inodes": "import itertools\nfor n in itertools.count(): open(f'/tmp/{n}', 'w').close()",
    "folders in folders": "import os\nwhile True: os.mkdir('a'); os.chdir('a')",
    "shared memory that is detached": (
        "import ctypes\nl = ctypes.CDLL(None)\nprint(l.shmget(0, 1 << 24, 0o1600))\nopen('/dev/shm/a', 'wb').write(bytes(1 << 24))"
    ),
    "random devices": "open('/dev/sda').read(); open('/dev/mem').read()",
    "zero for ever": "import sys\nprint(len(open('/dev/zero', 'rb').read()))",
}

ASSERTED = {
    "always equal": FUNCTION["always equal"],
    "equal and more": (
        "class E:\n def __eq__(s, o): return True\n __ne__ = lambda s, o: False\n __lt__ = __gt__ = __le__ = __ge__ = __eq__\n"
        " def __sub__(s, o): return 0\n __rsub__ = __abs__ = __round__ = __sub__\n def __contains__(s, o): return True\n"
        " def __getattr__(s, n): return E()\n def __call__(s, *a): return E()\ndef f(x): return E()"
    ),
    "patched test": (
        "import builtins, sys\nbuiltins.AssertionError = Exception\nsys.modules['test_solution'] = sys.modules['pytest'] = None\n"
        "def f(x): return 1"
    ),
    "forged messages": (
        "import os\ndef f(x):\n for n in range(3, 20):\n  for letter in b'VREM':\n"
        "   try: os.write(n, bytes([letter]) + b'\\0\\0\\0\\4null')\n   except OSError: pass\n return 1"
    ),
    "asks the tester": (
        'import os\ndef f(x):\n body = b\'["call",0,["import os"],{}]\'\n for n in range(3, 20):\n'
        "   try: os.write(n, b'M' + len(body).to_bytes(4, 'big') + body)\n   except OSError: pass\n return 1"
    ),
    "leaves while asked": "import os\ndef f(x): os._exit(0)",
    "raises skipping": "import unittest\ndef f(x): raise unittest.SkipTest",
    "raises the end of a loop": "def f(x): raise StopIteration",
    "exits": "import sys\ndef f(x): sys.exit(0)",
    "defines the test": "def test_it(): pass\ndef run_tests(): pass\ndef f(x): return 1",
}
