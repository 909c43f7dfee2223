import sys

from memgen.cli.main import main

sys.exit(main())
