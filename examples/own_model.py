"""A stranger's network, from its definition to the radius of its predictions."""

import torch
import torch.nn.functional as F
from torch import nn

import covprop


class Net(nn.Module):
    """Functional style, a residual sum, a concatenation: nothing written for covprop."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.side, self.head = nn.Conv2d(8, 4, 1), nn.Linear(12 * 4 * 4, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.stem(x))
        x = x + F.relu(self.body(x))
        x = torch.cat([x, self.side(x)], dim=1)
        x = F.avg_pool2d(x, 2)
        return self.head(x.view(x.size(0), -1))


torch.manual_seed(0)
model, sigma, x = Net().eval(), 0.25, torch.rand(4, 1, 8, 8)  # your weights and images go here
covprop.check(model, input_shape=(1, 8, 8))  # or an error that names every operation in the way
prop = covprop.Propagator(model, sigma=sigma, input_shape=(1, 8, 8))
with torch.no_grad():
    out = prop(x)
print(f"Logits under noise: means {list(out.mean.shape)}, one covariance {list(out.cov.shape)}.")
print("Estimated radius of each image, by the closed form and by two slower estimators:")
radii = {"shared": covprop.estimated_radius(out, sigma)}
for name in ("linearized", "sampled"):
    radii[name] = covprop.margin(model, x, sigma=sigma, estimator=name).radius
for name, radius in radii.items():
    print(f"  {name:<10}", *(f"{r:.3f}" for r in radius.tolist()))
print("These are estimates for untrained weights; covprop.certify gives certified radii.")
