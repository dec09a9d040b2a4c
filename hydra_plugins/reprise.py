"""Hydra's plugins of this project: Hydra finds them only in this package. The implementations are in src/sweep."""

from src.config.versions import store_config
from src.sweep.grid import GridSweeper
from src.sweep.launcher import IsolatedLauncher
from src.sweep.search import SearchSweeper


class Isolated(IsolatedLauncher):
    __doc__ = IsolatedLauncher.__doc__


class Grid(GridSweeper):
    __doc__ = GridSweeper.__doc__


class Search(SearchSweeper):
    __doc__ = SearchSweeper.__doc__


# Hydra's own basic sweeper ends without a table where the launcher is a cluster's. It is not a yaml file, because Hydra
# warns of one that has the name of a part of its own.
store_config(
    name="basic",
    group="hydra/sweeper",
    node={"_target_": "hydra_plugins.reprise.Grid", "max_batch_size": None, "params": None},
)
