"""`python -m leadline` is the `leadline` command."""

from leadline.cli import main

main()
