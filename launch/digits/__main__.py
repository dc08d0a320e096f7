import sys

from launch.digits.run import main

sys.exit(main())
