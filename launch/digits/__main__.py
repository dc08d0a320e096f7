from launch.digits import main

raise SystemExit(main())
