"""`python -m knowngood`."""

import sys

from knowngood.cli.main import main

sys.exit(main())
