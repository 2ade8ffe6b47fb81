"""`python -m anyformer` is `anyformer`."""

from anyformer.cli.main import main

raise SystemExit(main())
