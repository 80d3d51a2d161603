"""`python -m director` is `director`."""

import sys

from director.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
