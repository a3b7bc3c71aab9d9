"""`python -m howfar` is the command `howfar`."""

import sys

from howfar.cli import main

sys.exit(main())
