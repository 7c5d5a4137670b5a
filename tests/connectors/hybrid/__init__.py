"""Tests of the source hybrid."""
