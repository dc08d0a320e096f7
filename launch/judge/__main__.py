import sys

from launch.judge.run import main

sys.exit(main())
