"""Noisy networks (Fortunato et al. 2018, arXiv:1706.10295): exploration by noise in the weights.

    w = mu + sigma * (f(e_out) f(e_in)^T),  b = mu_b + sigma_b * f(e_out),  f(x) = sign(x) sqrt|x|

with e_in and e_out standard normal, factorised (section 3, eq. 10 and 11). Owns the noise and the
layers; when new noise is drawn, and from which seed, is for others to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rlrun.policies.networks import ACTIVATIONS, UNIFORM, linear
from rlrun.policies.noise import factorised_noise


class NoisyMLP(nn.Module):
    """As `networks.MLP`, each layer with noise; without any until `draw_noise` is called.

    The means lie in the layers named "0", "1", ...; the standard deviations beside them as
    ``weight_sigma`` and ``bias_sigma``.

    Args:
        sizes: widths from input to output.
        activation: a key of ``ACTIVATIONS``.
        sigma: standard deviations start at ``sigma / sqrt(inputs of the layer)``.
    """

    def __init__(self, sizes: Sequence[int], activation: str, *, sigma: float) -> None:
        super().__init__()
        self._activation = ACTIVATIONS[activation]
        self._noise: list[tuple[Tensor, Tensor]] | None = None
        for i, (num_inputs, num_outputs) in enumerate(pairwise(sizes)):
            layer = linear(num_inputs, num_outputs, 1.0, UNIFORM)  # as section 3.2 has it
            for name, mean in (("weight", layer.weight), ("bias", layer.bias)):
                start = torch.full_like(mean, sigma * num_inputs**-0.5)
                layer.register_parameter(f"{name}_sigma", nn.Parameter(start))
            self.add_module(str(i), layer)

    def draw_noise(self, rng: np.random.Generator) -> None:
        """Act and learn with new noise from now on."""
        self._noise = []
        for layer in self._modules.values():
            assert isinstance(layer, nn.Linear)
            into, out = factorised_noise(rng, layer.in_features, layer.out_features)
            of_inputs, of_outputs = (
                torch.from_numpy(e).to(layer.weight.device) for e in (into, out)
            )
            self._noise.append((torch.outer(of_outputs, of_inputs), of_outputs))

    def forward(self, x: Tensor, *, noisy: bool = True) -> Tensor:
        """[N, in] -> [N, out]; with the means alone if ``noisy`` is False."""
        layers = list(self._modules.values())
        for i, layer in enumerate(layers):
            parameters: dict[str, Tensor] = layer._parameters  # type: ignore[union-attr,assignment]
            weight, bias = parameters["weight"], parameters["bias"]
            if noisy and self._noise is not None:
                of_weight, of_bias = self._noise[i]
                weight = torch.addcmul(weight, parameters["weight_sigma"], of_weight)
                bias = torch.addcmul(bias, parameters["bias_sigma"], of_bias)
            x = functional.linear(x, weight, bias)
            if i < len(layers) - 1:
                x = self._activation(x)
        return x
