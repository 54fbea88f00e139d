"""Ranks that are threads, and a process alone, keep the contract of communicators."""

from singanet.parallel import SingleProcess
from tests.kit.ranks import together
from tests.parallel.communicators.communicator_case import CommunicatorCase


class TestRanksOfThreads(CommunicatorCase):
    def run(self, work, size):
        together(work, size)


class TestASingleProcess(CommunicatorCase):
    sizes = (1,)

    def run(self, work, size):
        work(SingleProcess())
