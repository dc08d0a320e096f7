import sys

from launch.lm.run import main

sys.exit(main())
