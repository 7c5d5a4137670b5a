"""Joins of two keyed inputs."""
