"""`python -m trueup` is the command `trueup`."""

import sys

from trueup.cli import main

if __name__ == "__main__":
    sys.exit(main())
