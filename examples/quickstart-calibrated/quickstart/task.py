"""Model, data, training: nothing of FedCal."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def load_data(partition_id: int, num_partitions: int) -> tuple[DataLoader, DataLoader]:
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    mine = torch.arange(len(y)) % num_partitions == partition_id
    x, y = x[mine], y[mine]
    cut = 4 * len(y) // 5
    train, test = TensorDataset(x[:cut], y[:cut]), TensorDataset(x[cut:], y[cut:])
    return DataLoader(train, batch_size=32), DataLoader(test, batch_size=32)


def train(net: nn.Module, loader: DataLoader, lr: float) -> float:
    optimizer, total = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9), 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


def test(net: nn.Module, loader: DataLoader) -> float:
    with torch.no_grad():
        hits = [(net(x).argmax(1) == y).float().mean() for x, y in loader]
    return float(torch.stack(hits).mean())
