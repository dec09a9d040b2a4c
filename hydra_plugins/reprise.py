"""Hydra's plugins of this project: Hydra finds them only in this package. The implementations are in src/sweep."""

from src.sweep.grid import GridSweeper
from src.sweep.launcher import IsolatedLauncher
from src.sweep.search import SearchSweeper


class Isolated(IsolatedLauncher):
    __doc__ = IsolatedLauncher.__doc__


class Grid(GridSweeper):
    __doc__ = GridSweeper.__doc__


class Search(SearchSweeper):
    __doc__ = SearchSweeper.__doc__
