"""Recorded programs: the kernel calls of a step, with their memory planned."""
