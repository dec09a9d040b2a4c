"""QM9 from the file of DGL's QM9EdgeDataset, which NVIDIA's SE(3)-Transformer was trained on.

Layout, as read from DGL's python/dgl/data/qm9_edge.py, with the molecules concatenated: `n_node` and `n_edge` are their
sizes, `node_attr` [nodes, 11] (the first five one-hot H, C, N, O, F), `node_pos` [nodes, 3], `edge_attr` [edges, 4]
(one-hot single, double, triple, aromatic), `src` and `dst` atom numbers within the molecule, in both directions, and
`targets` [molecules, 19].
"""

from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from src.config.ranges import Count, Seed
from src.datamodules.download import from_url, sha256_of
from src.datamodules.graphs.data import ELEMENTS, GraphData, Molecule, MoleculeError, checked
from src.datamodules.graphs.prepare import Entries, Outcome, load_graphs, prepare_graphs
from src.datamodules.graphs.qm9 import UNITS, published_split
from src.datamodules.prepared import Selection
from src.errors import UserError
from src.system.reading import read_npz

URL = "https://data.dgl.ai/dataset/qm9_edge.npz"  # 38 MB; neither DGL nor NVIDIA publishes a checksum
WIDTHS = {"node_attr": 11, "node_pos": 3, "edge_attr": 4, "targets": len(UNITS)}
VECTORS = ("n_node", "n_edge", "src", "dst")
Content = tuple[Float[np.ndarray, "atoms 5"], Float[np.ndarray, "atoms 3"], Int[np.ndarray, "edges 3"]]


def load(
    data_dir: str | Path,
    *,
    file: str | Path | None = None,
    sha256: str | None = None,
    limit: Count | None = None,
    seed: Seed = 0,
    skip_bad: bool = False,
    workers: Count | None = None,
) -> GraphData:
    """Returns QM9 from DGL's file; downloads and prepares it in `data_dir` first if necessary.

    Args:
        data_dir: folder of the downloaded file and the prepared arrays.
        file: a local qm9_edge.npz; downloaded from DGL if not given.
        sha256: of the file to download, if known.
        limit, seed, skip_bad, workers: as for src.datamodules.graphs.qm9.
    """
    folder = Path(data_dir)
    path = Path(file) if file else from_url(URL, sha256, folder / Path(URL).name)
    prepared = prepare_graphs(
        folder,
        {path.name: sha256_of(path)},
        lambda: entries_of(path),
        parse,
        Selection(limit, seed, skip_bad),
        workers,
    )
    return load_graphs(prepared, published_split)


def parse(content: Content) -> Outcome:
    """One molecule, and an empty note, from its one-hot elements, positions and directed edges (src, dst, order)."""
    elements, positions, edges = content
    ascending = edges[edges[:, 0] < edges[:, 1]]
    descending = edges[edges[:, 0] > edges[:, 1]][:, [1, 0, 2]]
    forward, backward = (np.unique(part, axis=0) for part in (ascending, descending))
    if len(ascending) + len(descending) < len(edges) or not np.array_equal(forward, backward):
        raise MoleculeError("has a bond without its reverse")
    numbers = np.array(list(ELEMENTS.values()), np.uint8)[elements.argmax(1)]
    numbers[elements.sum(1) != 1] = 0
    return Outcome(checked(Molecule(numbers, positions, ascending[:, :2], ascending[:, 2].astype(np.uint8))))


def entries_of(path: Path) -> Entries:
    """Returns the molecules of DGL's file, each to be parsed by `parse`. Raises UserError for another file."""
    arrays = _read(path)
    edges = np.stack([arrays["src"], arrays["dst"], arrays["edge_attr"].argmax(1) + 1], 1)
    parts = (
        np.split(values, np.cumsum(arrays[sizes])[:-1])
        for values, sizes in ((arrays["node_attr"][:, :5], "n_node"), (arrays["node_pos"], "n_node"), (edges, "n_edge"))
    )
    total = len(arrays["n_node"])
    return Entries(
        contents=list(zip(*parts, strict=True)) if total else [],
        names=[f"{path.name} molecule {row}" for row in range(total)],
        targets=arrays["targets"].astype(np.float64),
        units=UNITS,
    )


def _read(path: Path) -> dict[str, np.ndarray]:
    """Returns the arrays of the file. Raises UserError for a damaged file and for missing arrays or wrong shapes."""
    arrays = read_npz(path, (*VECTORS, *WIDTHS), "delete it, or give DGL's qm9_edge.npz")
    for key, array in arrays.items():
        if array.dtype.kind not in ("iu" if key in VECTORS else "fiub") or (
            key in VECTORS and array.min(initial=0) < 0
        ):
            raise UserError(f"{path}: {key} has {array.dtype} or negative numbers, expected counts; give another file")
    molecules = len(arrays["n_node"]) if arrays["n_node"].ndim else 0
    nodes, edges = (int(arrays[key].sum()) for key in ("n_node", "n_edge"))
    lengths = {
        "n_edge": molecules,
        "src": edges,
        "dst": edges,
        "node_attr": nodes,
        "node_pos": nodes,
        "edge_attr": edges,
    }
    for key, length in (lengths | {"targets": molecules}).items():
        shape = (length, WIDTHS[key]) if key in WIDTHS else (length,)
        if arrays[key].shape != shape:
            raise UserError(f"{path}: {key} has shape {arrays[key].shape}, expected {shape}; give another file")
    return arrays
