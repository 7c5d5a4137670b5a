"""Windows: assigners, triggers and their folds."""
