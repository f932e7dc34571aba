"""`python -m strandline` is the same as the console script."""

import sys

from strandline.broker.cli import main

if __name__ == "__main__":
    sys.exit(main())
