import sys

from launch.icl.run import main

sys.exit(main())
