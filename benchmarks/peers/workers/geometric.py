"""PyTorch Geometric: ``python -m benchmarks.peers.workers.geometric levels``."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Batch as GraphBatch
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing

from benchmarks.peers.protocol import Batch, Given, serve
from benchmarks.peers.workers.torch_base import TorchProgram, set_tree_weights
from benchmarks.trees import Tree, from_arrays


class Merge(MessagePassing):  # type: ignore[misc]
    """Children tell their parent their states, the left one first; the parent makes its own of them."""

    def __init__(self, hidden: int) -> None:
        super().__init__(aggr=None)
        self.hidden = hidden
        self.gates = nn.Linear(2 * hidden, 5 * hidden)

    def forward(self, states: Tensor, edges: Tensor, parents: int) -> Tensor:
        made: Tensor = self.propagate(edges, x=(states, None), size=(len(states), parents))
        return made

    def message(self, x_j: Tensor) -> Tensor:
        return x_j

    def aggregate(self, inputs: Tensor) -> Tensor:
        # Edges come sorted by parent, the left child first: no need to scatter.
        return inputs.view(-1, 4 * self.hidden)

    def update(self, inputs: Tensor) -> Tensor:
        left_h, left_c, right_h, right_c = inputs.split(self.hidden, 1)
        gates, candidate = self.gates(torch.cat((left_h, right_h), 1)).split((4 * self.hidden, self.hidden), 1)
        i, left, right, o = torch.sigmoid(gates).chunk(4, 1)
        c = torch.addcmul(torch.addcmul(i * torch.tanh(candidate), left, left_c), right, right_c)
        return torch.cat((o * torch.tanh(c), c), 1)


class Model(nn.Module):
    def __init__(self, words: int, embedding: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.embed = nn.Embedding(words, embedding, sparse=True)
        self.leaf = nn.Linear(embedding, 3 * hidden)
        self.merge = Merge(hidden)
        self.classify = nn.Linear(hidden, 5)

    def forward(self, graph: GraphBatch) -> Tensor:
        """The state of every node, shown part first."""
        leaves = (graph.level == 0).nonzero().squeeze(1)
        gates, candidate = self.leaf(self.embed(graph.word[leaves])).split((2 * self.hidden, self.hidden), 1)
        i, o = torch.sigmoid(gates).chunk(2, 1)
        c = i * torch.tanh(candidate)
        states = torch.zeros(graph.num_nodes, 2 * self.hidden)
        states[leaves] = torch.cat((o * torch.tanh(c), c), 1)
        children, parents = graph.edge_index
        level, order = graph.level[parents].sort(stable=True)
        sizes = torch.bincount(level)[1:].tolist()
        for from_children, to_parents in zip(children[order].split(sizes), parents[order].split(sizes), strict=True):
            count = len(to_parents) // 2
            edges = torch.stack((from_children, torch.arange(count).repeat_interleave(2)))
            states[to_parents[::2]] = self.merge(states, edges, count)
        return states


class Trees(TorchProgram):
    """Level by level, each a round of message passing. Every tree is made a graph once; batches of them as they come."""

    model: Model

    def __init__(self, given: Given) -> None:
        sizes = given.sizes
        model = Model(sizes["words"], sizes["embedding"], sizes["hidden"])
        set_tree_weights(given, embed=model.embed, leaf=model.leaf, merge=model.merge.gates, classify=model.classify)
        self.start(model, given)
        self.at_every_node = bool(sizes["at_every_node"])
        self.graphs = [graph_of(tree) for tree in from_arrays(given.data)]

    def batch_loss(self, batch: Batch) -> Tensor:
        graph = GraphBatch.from_data_list([self.graphs[number] for number in batch])
        shown = self.model(graph)[:, : self.model.hidden]
        labels = graph.label
        if not self.at_every_node:
            roots = graph.ptr[1:] - 1
            shown, labels = shown[roots], labels[roots]
        return F.cross_entropy(self.model.classify(shown), labels, reduction="sum")


def graph_of(tree: Tree) -> Data:
    """Children before parents, edges in the order of parents."""
    nodes = list(tree)
    number = {id(node): position for position, node in enumerate(nodes)}
    level: list[int] = []
    edges: list[tuple[int, int]] = []
    for position, node in enumerate(nodes):
        children = [] if node.left is None else [number[id(node.left)], number[id(node.right)]]
        level.append(max([1 + level[child] for child in children], default=0))
        edges += [(child, position) for child in children]
    return Data(
        edge_index=torch.tensor(edges, dtype=torch.long).reshape(-1, 2).t().contiguous(),
        word=torch.tensor([max(0, node.word) for node in nodes]),
        label=torch.tensor([node.label for node in nodes]),
        level=torch.tensor(level),
        num_nodes=len(nodes),
    )


if __name__ == "__main__":
    serve({"tree-lstm": Trees})
