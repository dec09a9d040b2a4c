"""Where Hydra looks for plugins: it takes none from elsewhere. What they do is in src/sweep."""

from src.config.hydra_files import GridSweeper
from src.sweep.launcher import IsolatedLauncher
from src.sweep.search import SearchSweeper


class Isolated(IsolatedLauncher):
    __doc__ = IsolatedLauncher.__doc__


class Grid(GridSweeper):
    __doc__ = GridSweeper.__doc__


class Search(SearchSweeper):
    __doc__ = SearchSweeper.__doc__
