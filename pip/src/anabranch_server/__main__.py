"""`python -m anabranch_server`: the same as `anabranch`."""

from __future__ import annotations

from anabranch_server import main

main()
