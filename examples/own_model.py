"""A model and a training loop of one's own: put gates in, train with one more term in the loss, take the pruned units out."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

import bayesprune as bp
from bayesprune.data import load_mnist

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 3000  # about a minute on two cores
mnist = load_mnist()
x, y = mnist.train.images / 255, mnist.train.labels
block = lambda i, o: [nn.Conv2d(i, o, 5, stride=2), nn.BatchNorm2d(o), nn.ReLU()]  # noqa: E731
model = nn.Sequential(*block(1, 32), *block(32, 64), nn.Flatten(), nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 10))

gated = bp.sparsify(model, "bb", example_inputs=x[:2])  # a copy with gates wherever units can be removed exactly
print(bp.placement(gated))

optimizer = torch.optim.Adam(bp.param_groups(gated, lr=2e-3, gate_lr=1e-1))
for step in range(steps):
    batch = torch.randint(len(x), (100,))
    nll = F.cross_entropy(gated(x[batch]), y[batch])
    loss = bp.negative_elbo(nll, gated, n_data=len(x), kl_scale=20.0, warmup=bp.linear_warmup(step, steps // 2))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

small = bp.compact(gated.eval(), example_inputs=x[:2])  # small.model is a plain nn.Module, and computes the same
print(small.certificate)
with torch.no_grad():
    error = (small.model(mnist.test.images / 255).argmax(dim=1) != mnist.test.labels).float().mean()
print(f"test error {100 * error:.2f} %")
bp.save(small.model, "small.safetensors", certificate=small.certificate)
