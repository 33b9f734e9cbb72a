"""``python -m rlrun``, the same as ``rlrun``."""

from rlrun.cli.main import main

main()
