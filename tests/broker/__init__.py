"""Tests of the broker. A package, so that its `conftest` stays its own and tests elsewhere can use its helpers."""
