from launch.lm import main

raise SystemExit(main())
