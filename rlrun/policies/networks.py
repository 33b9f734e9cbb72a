"""Building blocks of the default networks: MLP, image encoder, initial weights.

Owns layer arithmetic only. Must not know of action spaces, policies or training. Shapes: N rows.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod, sqrt
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "elu": functional.elu,
    "silu": functional.silu,
    "gelu": functional.gelu,
}


class InPlace(NamedTuple):
    """An activation whose derivative follows from its output, both computed where they stand."""

    forward: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor], None]
    """(gradient, output): turns the gradient of the output into that of the input."""


# Autograd's own operations: ``gradient * (output > 0)`` takes ten times as long. They are called by
# functions since modules that hold them are pickled, which operations cannot be.
def _tanh_backward(gradient: Tensor, output: Tensor) -> None:
    torch.ops.aten.tanh_backward.grad_input(gradient, output, grad_input=gradient)


def _relu_backward(gradient: Tensor, output: Tensor) -> None:
    torch.ops.aten.threshold_backward.grad_input(gradient, output, 0, grad_input=gradient)


IN_PLACE: dict[str, InPlace] = {
    "tanh": InPlace(torch.tanh_, _tanh_backward),
    "relu": InPlace(torch.relu_, _relu_backward),
}


class Backward(Protocol):
    """Second half of a `vjp`: uses up the gradient of the output, leaves the parameters'."""

    def __call__(self, gradient: Tensor, *, to_input: bool = False) -> Tensor:
        """The gradient of the input if it is asked for; of no use otherwise."""
        ...


# Channels, kernel, stride of each layer (Mnih et al. 2015), for images of 36 pixels or more.
NATURE_CONV = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
# For smaller pictures, such as the 10x10 ones of MinAtar.
SMALL_CONV = ((16, 3, 1), (32, 3, 1))
NATURE_MIN_PIXELS = 36
SMALL_MIN_PIXELS = 5


def init_orthogonal(layer: nn.Linear | nn.Conv2d, gain: float) -> None:
    """Orthogonal weights, zero biases ("The 37 Implementation Details of PPO", detail 2)."""
    nn.init.orthogonal_(layer.weight, gain)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)


def init_uniform(layer: nn.Linear | nn.Conv2d, gain: float) -> None:
    """Weights and biases uniform within ``gain / sqrt(inputs of an output)``."""
    bound = gain / sqrt(layer.weight[0].numel())
    assert layer.bias is not None
    for parameter in (layer.weight, layer.bias):
        nn.init.uniform_(parameter, -bound, bound)


class Init(NamedTuple):
    """How the layers of a network start."""

    fill: Callable[[nn.Linear | nn.Conv2d, float], None]
    """(layer, gain): overwrites the layer's weights and biases."""
    hidden_gain: float


ORTHOGONAL = Init(init_orthogonal, sqrt(2.0))
# The start of Mnih et al. (2015): between hidden layers two fifths of the orthogonal one's size.
# Q-learning bootstraps from its own maximum: what a network adds to values of states that it was
# not trained on comes back in its targets, and with large weights the values run away.
UNIFORM = Init(init_uniform, 1.0)


def linear(num_inputs: int, num_outputs: int, gain: float, init: Init = ORTHOGONAL) -> nn.Linear:
    """A linear layer that starts with this gain."""
    layer = nn.Linear(num_inputs, num_outputs)
    init.fill(layer, gain)
    return layer


class MLP(nn.Module):
    """Linear layers, named "0", "1", ..., with an activation between them: [N, in] -> [N, out].

    Args:
        sizes: widths from input to output; one size alone makes the identity.
        activation: a key of ``ACTIVATIONS``.
        output_gain: gain of the last layer. None: the last layer is a hidden layer too, with its
            gain and followed by the activation.
        init: how the layers start.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        activation: str,
        *,
        output_gain: float | None = None,
        init: Init = ORTHOGONAL,
    ) -> None:
        super().__init__()
        self.output_size = sizes[-1]
        self._activation = ACTIVATIONS[activation]
        self._in_place = IN_PLACE.get(activation)
        self._num_activated = len(sizes) - (1 if output_gain is None else 2)
        for i, (num_inputs, num_outputs) in enumerate(pairwise(sizes)):
            last = i == len(sizes) - 2
            gain = init.hidden_gain if output_gain is None or not last else output_gain
            self.add_module(str(i), linear(num_inputs, num_outputs, gain, init))

    @property
    def last(self) -> nn.Linear:
        """The output layer."""
        layer = next(reversed(self._modules.values()))
        assert isinstance(layer, nn.Linear)
        return layer

    def forward(self, x: Tensor) -> Tensor:
        """[N, in] -> [N, out]."""
        activation = self._activation
        num_activated = self._num_activated
        # Reading the parameters directly: a module call each would cost as much as a 64x64 layer.
        for i, layer in enumerate(self._modules.values()):
            parameters = layer._parameters  # type: ignore[union-attr]
            x = functional.linear(x, parameters["weight"], parameters["bias"])  # type: ignore[arg-type]
            if i < num_activated:
                x = activation(x)
        return x

    def _linear_layers(self) -> list[nn.Linear]:
        return [layer for layer in self._modules.values() if isinstance(layer, nn.Linear)]

    @property
    def has_vjp(self) -> bool:
        """Whether `vjp` knows the derivative of the activation."""
        return self._in_place is not None

    def vjp(self, x: Tensor) -> tuple[Tensor, Backward]:
        """The output [N, out], and what turns its gradient [N, out] into the parameters'.

        Autograd's bookkeeping costs as much as the arithmetic of small layers; this is the
        arithmetic alone. Each parameter's ``.grad`` must be there already and is overwritten.
        """
        assert self._in_place is not None
        activate, derive = self._in_place
        kept = [x]
        layers = [(layer.weight, layer.bias) for layer in self._linear_layers()]
        with torch.no_grad():
            for i, (weight, bias) in enumerate(layers):
                x = torch.addmm(bias, x, weight.t())
                if i < self._num_activated:
                    x = activate(x)
                kept.append(x)

        def backward(gradient: Tensor, *, to_input: bool = False) -> Tensor:
            for i, (weight, bias) in reversed(list(enumerate(layers))):
                if i < self._num_activated:
                    derive(gradient, kept[i + 1])
                torch.mm(gradient.t(), kept[i], out=weight.grad)
                torch.sum(gradient, 0, out=bias.grad)
                if i > 0 or to_input:
                    gradient = gradient.mm(weight)
            return gradient

        return x, backward


def dueling_values(value: Tensor, advantages: Tensor) -> Tensor:
    """``V + A - mean(A)``, ``[N, n]``, for V ``[N, 1]`` and A ``[N, n]`` (Wang et al., eq. 9).

    The mean is taken over actions; the numbers may have atoms ``[..., K]`` behind them.
    """
    return value + advantages - advantages.mean(dim=1, keepdim=True)


def is_image(shape: Sequence[int]) -> bool:
    """Whether observations of this shape are encoded by convolutions unless told otherwise."""
    return len(shape) == 3 and min(image_size(shape)[1:]) >= SMALL_MIN_PIXELS


def channels_first(shape: Sequence[int]) -> bool:
    """Whether an image of this shape is [channels, height, width].

    The smaller outer dimension is taken for the channels; on a tie it is the last one, which is
    gymnasium's habit.
    """
    return shape[0] < shape[2]


def image_size(shape: Sequence[int]) -> tuple[int, int, int]:
    """Channels, height and width of an image in either layout."""
    if channels_first(shape):
        return shape[0], shape[1], shape[2]
    return shape[2], shape[0], shape[1]


class ConvEncoder(nn.Module):
    """Convolutions and one linear layer, all followed by ReLU: images to [N, output_size].

    Args:
        shape: of one image, channels first or last.
        conv: (channels, kernel, stride) of each layer. None: ``NATURE_CONV``, or ``SMALL_CONV``
            for small images.
        output_size: width of the linear layer.
        init: how the layers start.

    Raises:
        ValueError: when a layer's kernel is larger than what is left of the image.
    """

    def __init__(
        self,
        shape: Sequence[int],
        conv: Sequence[Sequence[int]] | None,
        output_size: int,
        init: Init = ORTHOGONAL,
    ) -> None:
        super().__init__()
        if len(shape) != 3:
            raise ValueError(f"model.conv: convolutions need 3-D observations, not {tuple(shape)}")
        channels, height, width = image_size(shape)
        if conv is None:
            conv = NATURE_CONV if min(height, width) >= NATURE_MIN_PIXELS else SMALL_CONV
        self.output_size = output_size
        self._channels_first = channels_first(shape)
        self.conv = nn.ModuleList()
        for i, (num_filters, kernel, stride) in enumerate(conv):
            if kernel > min(height, width):
                raise ValueError(
                    f"model.conv: layer {i} has a {kernel}x{kernel} kernel, but only "
                    f"{height}x{width} pixels are left of the {tuple(shape)} image; "
                    "use fewer layers or smaller kernels and strides"
                )
            layer = nn.Conv2d(channels, num_filters, kernel, stride)
            init.fill(layer, init.hidden_gain)
            self.conv.append(layer)
            channels = num_filters
            height = (height - kernel) // stride + 1
            width = (width - kernel) // stride + 1
        num_features = prod((channels, height, width))
        self.fc = linear(num_features, output_size, init.hidden_gain, init)

    def forward(self, x: Tensor) -> Tensor:
        """Float images [N, ...] -> [N, output_size]."""
        if not self._channels_first:
            x = x.permute(0, 3, 1, 2)
        for layer in self.conv:
            x = torch.relu(layer(x))
        return torch.relu(self.fc(x.flatten(1)))
