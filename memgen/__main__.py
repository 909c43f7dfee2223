import sys

from memgen.cli import main

sys.exit(main())
