"""`python -m analysis` in a checkout is `rollpacker analysis`; `--backend sim` stands for `backend=sim`."""

import sys

from rollpacker.cli.main import main

if __name__ == "__main__":
    words = iter(sys.argv[1:])
    plain = [f"{word[2:]}={next(words, '')}" if word.startswith("--") and word != "--help" else word for word in words]
    sys.exit(main(["analysis", *plain]))
