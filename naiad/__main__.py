"""`python -m naiad` is the command `naiad` of this Python."""

from naiad.cli.main import main

main()
