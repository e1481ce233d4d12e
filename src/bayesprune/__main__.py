"""``python -m bayesprune``."""

from bayesprune.cli import main

main()
