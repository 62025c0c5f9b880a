"""torch_geometric: layers, pooling and graphs, one graph an example."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.third_party.checking import check, tensors

pytest.importorskip("torch_geometric", reason="torch_geometric is not installed: make trials")

from torch_geometric import nn as gnn
from torch_geometric import utils
from torch_geometric.data import Batch, Data

NODES = tensors((3, 4), (2, 4), (5, 4))
EDGES = [
    torch.tensor([[0, 1, 2, 0], [1, 2, 0, 2]]),
    torch.tensor([[0, 1], [1, 0]]),
    torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 2]]),
]
GRAPHS = list(zip(NODES, EDGES, strict=True))


@pytest.mark.parametrize(
    "make",
    [
        lambda: gnn.GCNConv(4, 6),
        lambda: gnn.SAGEConv(4, 6),
        lambda: gnn.GATConv(4, 3, heads=2),
        lambda: gnn.GINConv(nn.Sequential(nn.Linear(4, 6), nn.ReLU())),
        lambda: gnn.GatedGraphConv(4, 2),
        lambda: gnn.TransformerConv(4, 3, heads=2),
    ],
    ids=["GCN", "SAGE", "GAT", "GIN", "GatedGraph", "Transformer"],
)
def test_layer(make: Any) -> None:
    layer = make().double()
    check(lambda graph: layer(*graph), GRAPHS, [*NODES, *layer.parameters()])


def test_edge_weights() -> None:
    layer = gnn.GraphConv(4, 2).double()

    def function(graph: Any) -> Any:
        x, edges = graph
        return layer(x, edges, (x[edges[0]] * x[edges[1]]).sum(1))

    check(function, GRAPHS, [*NODES, *layer.parameters()])


def test_messages_of_ones_own() -> None:
    class Largest(gnn.MessagePassing):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(aggr="max")

        def forward(self, x: Any, edges: Any) -> Any:
            return self.propagate(edges, x=x)

        def message(self, x_i: Any, x_j: Any) -> Any:
            return x_j - x_i

    layer = Largest()
    check(lambda graph: layer(*graph), GRAPHS, NODES)


def test_model_and_pooling() -> None:
    model = gnn.GCN(4, 6, num_layers=2, out_channels=3).double()

    def function(graph: Any) -> Any:
        hidden = model(*graph)
        return [pool(hidden, None) for pool in (gnn.global_mean_pool, gnn.global_max_pool, gnn.global_add_pool)]

    check(function, GRAPHS, [*NODES, *model.parameters()])


def test_pooling_by_group() -> None:
    def function(graph: Any) -> Any:
        group = torch.arange(len(graph[0])) // 2
        return gnn.global_add_pool(graph[0], group), gnn.global_max_pool(graph[0].tanh(), group)

    check(function, GRAPHS, NODES)


def test_scatter_and_softmax() -> None:
    def function(graph: Any) -> Any:
        x, (start, end) = graph
        weights = utils.softmax(x[start].sum(1), end, num_nodes=len(x))
        return utils.scatter(weights.unsqueeze(1) * x[start], end, dim=0, dim_size=len(x), reduce="sum")

    check(function, GRAPHS, NODES)


def test_edges_only() -> None:
    def function(graph: Any) -> Any:
        edges, nodes = graph[1], len(graph[0])
        both = utils.to_undirected(edges, num_nodes=nodes)
        return utils.degree(edges[1], nodes), both, utils.add_self_loops(edges, num_nodes=nodes)[0]

    check(function, GRAPHS)


def test_dense_adjacency() -> None:
    check(lambda graph: utils.to_dense_adj(graph[1], max_num_nodes=5)[0, : len(graph[0])] @ torch.ones(5), GRAPHS)


def test_graphs_as_examples() -> None:
    layer = gnn.GCNConv(4, 6).double()
    graphs = [Data(x=x, edge_index=edges) for x, edges in GRAPHS]
    check(lambda graph: layer(graph.x, graph.edge_index).relu(), graphs, [*NODES, *layer.parameters()])


def test_graph_made_inside() -> None:
    def function(graph: Any) -> Any:
        data = Data(x=graph[0].exp(), edge_index=graph[1])
        return data.num_nodes, data.num_edges, data.is_undirected(), data.x

    check(function, GRAPHS, NODES)


def test_graph_returned() -> None:
    check(lambda graph: Data(x=graph[0] * 2, edge_index=graph[1].flip(0)), GRAPHS, NODES)


def test_batch_made_inside() -> None:
    def function(graph: Any) -> Any:
        batch = Batch.from_data_list([Data(x=graph[0], edge_index=graph[1]), Data(x=graph[0] + 1, edge_index=graph[1])])
        return gnn.global_mean_pool(batch.x, batch.batch), batch.edge_index

    check(function, GRAPHS, NODES)


def test_top_of_a_graph() -> None:
    layer = gnn.TopKPooling(4, ratio=0.5).double()
    check(lambda graph: layer(*graph)[:2], GRAPHS, [*NODES, *layer.parameters()])
