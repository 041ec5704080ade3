"""`python -m outlast`, which is what torchrun starts."""

import sys

from outlast.cli import main

sys.exit(main())
