import sys

from launch.networks.run import main

sys.exit(main())
