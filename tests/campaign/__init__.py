"""A standing campaign against the program: hostile and damaged files, and processes that are killed.

    python -m tests.campaign                    # 15 minutes, as `make campaign`
    python -m tests.campaign --hours 8          # a night
    python -m tests.campaign --page docs/robustness.md

Everything is seeded: the seed and the number of an input make the same input again.
"""
