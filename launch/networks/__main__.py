from launch.networks import main

raise SystemExit(main())
