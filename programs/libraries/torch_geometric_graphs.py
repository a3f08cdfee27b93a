"""PyTorch Geometric: a dozen convolutions, pooling, batches of graphs, neighbour sampling free training of a GCN."""

import torch
from torch_geometric import nn
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.utils import add_self_loops, degree, scatter, softmax, to_dense_adj, to_dense_batch

device = "cuda" if torch.cuda.is_available() else "cpu"
draw = torch.Generator().manual_seed(0)
graphs = [
    Data(
        x=torch.randn(12, 8, generator=draw),
        edge_index=torch.randint(0, 12, (2, 40), generator=draw),
        y=torch.tensor([i % 3]),
    )
    for i in range(8)
]
batch = Batch.from_data_list(graphs).to(device)
LAYERS = {
    "GCN": nn.GCNConv(8, 8), "GAT": nn.GATConv(8, 4, heads=2), "GATv2": nn.GATv2Conv(8, 4, heads=2),
    "SAGE": nn.SAGEConv(8, 8), "GIN": nn.GINConv(torch.nn.Linear(8, 8)), "transformer": nn.TransformerConv(8, 8),
    "Cheb": nn.ChebConv(8, 8, 3), "TAG": nn.TAGConv(8, 8), "APPNP": nn.APPNP(3, 0.1), "PNA": nn.PNAConv(
        8, 8, ["mean", "max", "std"], ["identity", "amplification"], torch.tensor([0, 4, 8, 4])),
    "edge": nn.EdgeConv(torch.nn.Linear(16, 8)), "GRU": nn.GatedGraphConv(8, 2), "SAGE-max": nn.SAGEConv(8, 8, aggr="max"),
    "SAGE-median": nn.SAGEConv(8, 8, aggr="median"), "GEN": nn.GENConv(8, 8),
}  # fmt: skip
for name, layer in LAYERS.items():
    torch.manual_seed(0)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    layer = layer.to(device)
    out = layer(batch.x, batch.edge_index)
    loss = out.pow(2).mean()
    if loss.requires_grad:
        loss.backward()
    print(f"{name} loss {loss.item():.6f}")
for pool in (nn.global_mean_pool, nn.global_max_pool, nn.global_add_pool):
    print(f"{pool.__name__} result {pool(batch.x, batch.batch).pow(2).mean().item():.6f}")
index, _ = add_self_loops(batch.edge_index)
print(f"degree result {degree(index[0]).pow(2).mean().item():.4f}")
print(f"softmax result {softmax(batch.x[batch.edge_index[0], 0], batch.edge_index[1]).pow(2).sum().item():.5f}")
print(f"scatter result {scatter(batch.x, batch.batch, reduce='mul').abs().sum().item():.6f}")
print(f"dense result {to_dense_adj(batch.edge_index, batch.batch).mean().item():.5f}")
print(f"dense batch result {to_dense_batch(batch.x, batch.batch)[0].norm().item():.5f}")
pooled = nn.TopKPooling(8, ratio=0.5).to(device)(batch.x, batch.edge_index, batch=batch.batch)
assert pooled[0].shape == (48, 8)


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.norm = nn.GCNConv(8, 16), nn.GCNConv(16, 16), nn.BatchNorm(16)
        self.last = torch.nn.Linear(16, 3)

    def forward(self, data):
        hidden = self.norm(self.first(data.x, data.edge_index)).relu()
        return self.last(nn.global_mean_pool(self.second(hidden, data.edge_index), data.batch))


torch.manual_seed(0)
network = Network().to(device)
optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
for _ in range(3):
    for part in DataLoader(graphs, batch_size=4):
        part = part.to(device)
        loss = torch.nn.functional.cross_entropy(network(part), part.y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"training loss {loss.item():.5f}")
