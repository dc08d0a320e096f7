import sys

from launch.bench.run import main

sys.exit(main())
