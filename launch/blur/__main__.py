import sys

from launch.blur.run import main

sys.exit(main())
