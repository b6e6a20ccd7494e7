"""`python -m rollpacker.cli` is `rollpacker`."""

from rollpacker.cli.main import main

raise SystemExit(main())
