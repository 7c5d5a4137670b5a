"""Upgrades: checkpoints of earlier versions are continued, and those of a later version are refused by name."""
