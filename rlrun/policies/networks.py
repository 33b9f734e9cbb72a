"""MLPs and the encoder of images in torch; MLPs also in numpy, with their backward pass.

Owns layer arithmetic and initial weights; `layers` describes the networks. Must not know of action
spaces, policies or training. Shapes: N rows.
"""

from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from math import prod, sqrt
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rlrun.config.problems import misfit
from rlrun.data.column_data import Array
from rlrun.policies.layers import (
    HIDDEN_GAINS,
    IN_NUMPY,
    LEAST_VARIANCE,
    Layers,
    channels_first,
    factorised_noise,
)


def _identity(x: Tensor) -> Tensor:
    return x


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "elu": functional.elu,
    "silu": functional.silu,
    "gelu": functional.gelu,
    "linear": _identity,
}


def _times_slope_of_tanh(gradient: Array, output: Array) -> None:
    slope = output * output
    np.subtract(1.0, slope, out=slope)
    np.multiply(gradient, slope, out=gradient)


def _times_slope_of_relu(gradient: Array, output: Array) -> None:
    np.multiply(gradient, output > 0.0, out=gradient)


def _stays(gradient: Array, output: Array) -> None:
    """The input has the gradient of the output."""


BACK_IN_NUMPY: dict[str, Callable[[Array, Array], None]] = {
    "tanh": _times_slope_of_tanh,
    "relu": _times_slope_of_relu,
    "linear": _stays,
}
"""Backward passes of activations whose derivative is a function of their output.

``(gradient, output)``: multiplies the gradient of the output by the slope there, in place."""


class LayerArrays(NamedTuple):
    """Weights and biases of linear layers, and their gradients, as arrays in the same memory.

    They are kept, as making arrays of tensors takes a third of the time of an `MLP.vjp`. A noisy
    layer has two pairs: the means, then the standard deviations.
    """

    first: Tensor
    """The first parameter."""
    lies_at: int
    """Its address when the arrays were made; optimizers and devices may move it."""
    parameters: list[tuple[Any, Any]]
    gradients: list[tuple[Any, Any]]

    @staticmethod
    def of(parameters: Sequence[Tensor]) -> "LayerArrays":
        """The arrays of each layer's weight and bias in turn; with gradients if there are any."""
        arrays = [p.detach().numpy() for p in parameters]
        gradients = [p.grad.numpy() for p in parameters if p.grad is not None]
        first = parameters[0] if parameters else torch.empty(0)
        pairs = (list(zip(x[::2], x[1::2], strict=True)) for x in (arrays, gradients))
        return LayerArrays(first, first.data_ptr(), *pairs)


class Backward(Protocol):
    """The backward pass of a `vjp`, which overwrites the parameters' gradients."""

    def __call__(
        self, gradient: Array, *, to_input: bool = False, of_features: Array | None = None
    ) -> Array:
        """The gradient of the input if ``to_input``; the output's ``gradient`` is overwritten.

        Args:
            of_features: added to the gradient of the last layer's input.
        """


def init_orthogonal(layer: nn.Linear | nn.Conv2d, gain: float) -> None:
    """Orthogonal weights, zero biases ("The 37 Implementation Details of PPO", detail 2)."""
    nn.init.orthogonal_(layer.weight, gain)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)


def init_uniform(layer: nn.Linear | nn.Conv2d, gain: float) -> None:
    """Weights and biases as `draw_uniform` has them."""
    assert layer.bias is not None
    draw_uniform((layer.weight, layer.bias), layer.weight[0].numel(), gain)


def draw_uniform(parameters: Sequence[Tensor], num_inputs: int, gain: float) -> None:
    """Draw a layer's parameters uniformly within plus or minus ``gain / sqrt(num_inputs)``."""
    bound = gain / sqrt(num_inputs)
    for parameter in parameters:
        nn.init.uniform_(parameter, -bound, bound)


INITS = {"orthogonal": init_orthogonal, "uniform": init_uniform}


def linear(num_inputs: int, num_outputs: int, gain: float, init: str = "orthogonal") -> nn.Linear:
    """A linear layer with initial weights of this gain."""
    layer = nn.Linear(num_inputs, num_outputs)
    INITS[init](layer, gain)
    return layer


class MLP(nn.Module):
    """The torch module of `Layers`, [N, in] -> [N, out], for autograd or with its own `vjp`.

    Noisy weights (Fortunato et al. 2018, eq. 10 and 11) are

        w = mu + sigma * (f(e_out) f(e_in)^T),  b = mu_b + sigma_b * f(e_out)

    with the layers' weights and biases as means, and parameters ``weight_sigma`` and ``bias_sigma``
    as standard deviations. There is no noise until `draw_noise` is called.
    """

    def __init__(self, layers: Layers) -> None:
        super().__init__()
        self.output_size = layers.sizes[-1]
        self._activation = ACTIVATIONS[layers.activation]
        self._num_activated = layers.num_activated
        self._in_numpy = IN_NUMPY.get(layers.activation)
        self._back_in_numpy = BACK_IN_NUMPY.get(layers.activation)
        self.noisy = layers.sigma0 is not None
        self._noise: list[tuple[Tensor, Tensor]] | None = None
        self._looked_up: LayerArrays | None = None
        pairs = zip(pairwise(layers.sizes), layers.gains, strict=True)
        for i, ((num_inputs, num_outputs), gain) in enumerate(pairs):
            layer = linear(num_inputs, num_outputs, gain, layers.init)
            if layers.sigma0 is not None:
                start = layers.sigma0 * num_inputs**-0.5  # as section 3.2 has it
                for name, mean in (("weight", layer.weight), ("bias", layer.bias)):
                    sigma = nn.Parameter(torch.full_like(mean, start))
                    layer.register_parameter(f"{name}_sigma", sigma)
            self.add_module(str(i), layer)

    @property
    def last(self) -> nn.Linear:
        """The output layer; raises AttributeError without layers, as torch.jit expects."""
        if not self._modules:
            raise AttributeError("an MLP without layers has no last one")
        return self._linear_layers()[-1]

    def draw_noise(self, rng: np.random.Generator) -> None:
        """Draw new noise for acting and learning; does nothing for weights without noise."""
        if not self.noisy:
            return
        layers = self._linear_layers()
        if self._noise is None:
            like = [(layer.weight.detach(), layer.bias.detach()) for layer in layers]
            self._noise = [(torch.empty_like(w), torch.empty_like(b)) for w, b in like]
        for layer, (of_weight, of_bias) in zip(layers, self._noise, strict=True):
            drawn = factorised_noise(rng, layer.in_features, layer.out_features)
            into, out = (torch.from_numpy(e).to(of_bias.device) for e in drawn)
            torch.outer(out, into, out=of_weight)  # in its place, where recorded updates read it
            of_bias.copy_(out)

    def forward(self, x: Tensor, *, noisy: bool = True) -> Tensor:
        """[N, in] -> [N, out]; with the means of noisy weights if ``noisy`` is False."""
        activation = self._activation
        num_activated = self._num_activated
        noise = self._noise if noisy else None
        # Reading the parameters directly: a module call each would cost as much as a 64x64 layer.
        for i, layer in enumerate(self._modules.values()):
            parameters: dict[str, Tensor] = layer._parameters  # type: ignore[union-attr,assignment]
            weight, bias = parameters["weight"], parameters["bias"]
            if noise is not None:
                of_weight, of_bias = noise[i]
                weight = torch.addcmul(weight, parameters["weight_sigma"], of_weight)
                bias = torch.addcmul(bias, parameters["bias_sigma"], of_bias)
            x = functional.linear(x, weight, bias)
            if i < num_activated:
                x = activation(x)
        return x

    def _linear_layers(self) -> list[nn.Linear]:
        return [layer for layer in self._modules.values() if isinstance(layer, nn.Linear)]

    @property
    def has_vjp(self) -> bool:
        """Whether there is a `vjp` for these layers on their present device."""
        first = next(self.parameters(), None)
        return self._back_in_numpy is not None and (first is None or first.device.type == "cpu")

    def vjp(self, x: Array, kept: list[Array] | None = None) -> tuple[Array, Backward]:
        """The output [N, out], and its backward pass, which computes the parameters' gradients.

        Only if `has_vjp`. For small layers autograd's bookkeeping and torch's dispatch cost as much
        as the arithmetic; this is the arithmetic alone, in numpy, as in acting. Each parameter's
        ``.grad`` must exist and is overwritten.

        Args:
            kept: a list that is given the input and then the output of each layer.
        """
        assert self._in_numpy is not None
        assert self._back_in_numpy is not None
        activate, to_activated = self._in_numpy, self._back_in_numpy
        layers = self._looked_up
        if layers is None or layers.first.data_ptr() != layers.lies_at:
            layers = self._looked_up = LayerArrays.of(self._of_layers())
        parameters = self._with_noise(layers) if self.noisy else layers.parameters
        gradients = layers.gradients[::2] if self.noisy else layers.gradients
        kept = [] if kept is None else kept
        kept.append(x)
        for i, (weight, bias) in enumerate(parameters):
            x = np.dot(x, weight.T)
            x += bias
            if i < self._num_activated:
                activate(x, out=x)
            kept.append(x)

        def backward(
            gradient: Array, *, to_input: bool = False, of_features: Array | None = None
        ) -> Array:
            ones = np.ones(len(gradient), np.float32)
            for i in reversed(range(len(parameters))):
                if i < self._num_activated:
                    to_activated(gradient, kept[i + 1])
                d_weight, d_bias = gradients[i]
                np.dot(gradient.T, kept[i], out=d_weight)
                np.dot(ones, gradient, out=d_bias)
                if i > 0 or to_input:
                    gradient = np.dot(gradient, parameters[i][0])
                    if of_features is not None and i == len(parameters) - 1:
                        gradient += of_features
            if self.noisy:
                self._to_sigmas(layers)
            return gradient

        return kept[-1], backward

    def _of_layers(self) -> list[Tensor]:
        """Weights and biases in the order of the layers."""
        return list(self.parameters())

    def _with_noise(self, layers: LayerArrays) -> list[tuple[Array, Array]]:
        """Each layer's weight and bias under the present noise."""
        means, sigmas = layers.parameters[::2], layers.parameters[1::2]
        together = zip(means, sigmas, self._noise_arrays(len(means)), strict=True)
        return [(w + sw * ew, b + sb * eb) for (w, b), (sw, sb), (ew, eb) in together]

    def _to_sigmas(self, layers: LayerArrays) -> None:
        """Multiply the gradients of the means by the noise, for the standard deviations."""
        means, sigmas = layers.gradients[::2], layers.gradients[1::2]
        together = zip(means, sigmas, self._noise_arrays(len(means)), strict=True)
        for (dw, db), (dsw, dsb), (ew, eb) in together:
            np.multiply(dw, ew, out=dsw)
            np.multiply(db, eb, out=dsb)

    def _noise_arrays(self, num_layers: int) -> list[tuple[Any, Any]]:
        """The noise of each layer's weight and bias; zeros before it is drawn."""
        if self._noise is None:
            return [(0.0, 0.0)] * num_layers
        return [(of_weight.numpy(), of_bias.numpy()) for of_weight, of_bias in self._noise]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_looked_up": None}  # the parameters of a copy are elsewhere


class StateNoiseMLP(MLP):
    """An MLP with the log standard deviations of its outputs beside them, [N, in] -> [N, 2 out].

    They are those of `StateNoise`.
    """

    def __init__(self, layers: Layers) -> None:
        super().__init__(layers)
        assert layers.state_noise is not None
        self._moves_features = layers.state_noise.moves_features
        log_std = torch.full_like(self.last.weight, layers.state_noise.log_std_init)
        self.weight_log_std = nn.Parameter(log_std)

    def forward(self, x: Tensor, *, noisy: bool = True) -> Tensor:
        """[N, in] -> [N, 2 out]; ``noisy`` changes nothing."""
        return self.with_features(x)[0]

    def with_features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The output [N, 2 out], and the input of the last layer [N, L]."""
        *hidden, last = self._linear_layers()
        for layer in hidden:
            x = self._activation(functional.linear(x, layer.weight, layer.bias))
        features = x if self._moves_features else x.detach()
        variances = functional.linear(features.square(), (2.0 * self.weight_log_std).exp())
        log_std = 0.5 * (variances + float(LEAST_VARIANCE)).log()
        return torch.cat((functional.linear(x, last.weight, last.bias), log_std), dim=1), x

    def vjp(self, x: Array, kept: list[Array] | None = None) -> tuple[Array, Backward]:
        """See `MLP.vjp`."""
        kept = [] if kept is None else kept
        means, of_means = super().vjp(x, kept)
        features = kept[-2]
        weight_variances = np.exp(2.0 * self.weight_log_std.detach().numpy())
        squares = features * features
        variances = np.dot(squares, weight_variances.T)
        variances += LEAST_VARIANCE

        def backward(
            gradient: Array, *, to_input: bool = False, of_features: Array | None = None
        ) -> Array:
            d_means, d_log_std = np.split(gradient, 2, axis=1)
            d_variances = 0.5 * d_log_std / variances
            assert self.weight_log_std.grad is not None
            np.multiply(
                2.0 * weight_variances,
                np.dot(d_variances.T, squares),
                out=self.weight_log_std.grad.numpy(),
            )
            if self._moves_features:
                of_features = 2.0 * features * np.dot(d_variances, weight_variances)
            return of_means(d_means, to_input=to_input, of_features=of_features)

        return np.concatenate((means, 0.5 * np.log(variances)), axis=1), backward

    def _of_layers(self) -> list[Tensor]:
        return super()._of_layers()[1:]  # without `weight_log_std`


def mlp(layers: Layers) -> MLP:
    """The torch module of some layers."""
    return MLP(layers) if layers.state_noise is None else StateNoiseMLP(layers)


class TwinMLP(nn.Module):
    """Two MLPs of the same `Layers` in one, ``[N, in] -> [2, N, out]``, with half the calls."""

    def __init__(self, layers: Layers) -> None:
        super().__init__()
        self._activation = ACTIVATIONS[layers.activation]
        self._in_numpy = IN_NUMPY.get(layers.activation)
        self._back_in_numpy = BACK_IN_NUMPY.get(layers.activation)
        self._single = layers.sizes[-1] == 1
        self._looked_up: LayerArrays | None = None
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for sizes, gain in zip(pairwise(layers.sizes), layers.gains, strict=True):
            weight, bias = torch.empty(2, *sizes), torch.zeros(2, 1, sizes[1])
            if layers.init == "uniform":
                draw_uniform((weight, bias), sizes[0], gain)
            else:
                for half in weight:
                    nn.init.orthogonal_(half, gain)
            self.weights.append(nn.Parameter(weight))
            self.biases.append(nn.Parameter(bias))

    def _layers(self) -> list[tuple[Tensor, Tensor]]:
        """Weight and bias of each layer; reading them from a ParameterList costs a layer's time."""
        weights, biases = self.weights._parameters, self.biases._parameters
        return list(zip(weights.values(), biases.values(), strict=True))  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """[N, in] -> [2, N, out]."""
        x, layers = x.expand(2, *x.shape), self._layers()
        for weight, bias in layers[:-1]:
            x = self._activation(torch.baddbmm(bias, x, weight))
        return last_layer(x, *layers[-1])

    @property
    def has_vjp(self) -> bool:
        """Whether there is a `vjp` for these layers on their present device."""
        possible = self._back_in_numpy is not None and self._single
        return possible and self.weights[0].device.type == "cpu"

    def vjp(self, x: Array) -> tuple[Array, "TwinBackward"]:
        """The outputs [2, N], of one unit each, and the backward pass; see `MLP.vjp`."""
        assert self._in_numpy is not None
        assert self._back_in_numpy is not None
        layers = self._looked_up
        if layers is None or layers.first.data_ptr() != layers.lies_at:
            layers = self._looked_up = LayerArrays.of(list(chain(*self._layers())))
        kept = [x]
        *hidden, (last_weight, last_bias) = layers.parameters
        for weight, bias in hidden:
            x = np.matmul(x, weight)
            x += bias
            kept.append(self._in_numpy(x, out=x))
        values = np.matmul(x, last_weight)
        values += last_bias
        return values[..., 0], TwinBackward(layers, kept, self._back_in_numpy)

    __getstate__ = MLP.__getstate__


def last_layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``x weight + bias``, ``[2, N, out]``.

    For a matrix of one column BLAS takes five times as long as `vecdot`.
    """
    if weight.shape[2] > 1:
        return torch.baddbmm(bias, x, weight)
    return torch.linalg.vecdot(x, weight.transpose(1, 2)).unsqueeze(2) + bias


class TwinBackward:
    """The backward pass of a `TwinMLP` with one output, to its parameters or to its input.

    Args:
        layers: weights and biases of both modules, and their gradients.
        kept: the input of each layer: of the first ``[N, in]``, of the others ``[2, N, width]``.
        to_activated: the backward pass of the activation, from `BACK_IN_NUMPY`.
    """

    def __init__(
        self,
        layers: LayerArrays,
        kept: Sequence[Array],
        to_activated: Callable[[Array, Array], None],
    ) -> None:
        self._layers, self._kept, self._to_activated = layers, kept, to_activated

    def to_parameters(self, gradient: Array) -> None:
        """Overwrite each parameter's ``.grad``, given the gradient of the output [2, N]."""
        ones = np.ones(gradient.shape[1], np.float32)
        of_layer = gradient[..., None]
        for i in reversed(range(len(self._kept))):
            d_weight, d_bias = self._layers.gradients[i]
            np.matmul(self._kept[i].swapaxes(-1, -2), of_layer, out=d_weight)
            np.matmul(ones, of_layer, out=d_bias[:, 0])
            if i > 0:
                weight, _ = self._layers.parameters[i]
                of_layer = np.matmul(of_layer, weight.swapaxes(1, 2))
                self._to_activated(of_layer, self._kept[i])

    def to_input(self, gradient: Array) -> Array:
        """The gradient of the input [N, in], given the gradient of the output [2, N].

        Rows without a gradient are skipped: half of them, where only the smaller value counts.
        """
        of_input = np.zeros_like(self._kept[0])
        for half in (0, 1):
            rows = gradient[half].nonzero()[0]
            of_layer = gradient[half, rows, None]
            for i in reversed(range(len(self._kept))):
                weight, _ = self._layers.parameters[i]
                of_layer = np.dot(of_layer, weight[half].T)
                if i > 0:
                    self._to_activated(of_layer, self._kept[i][half].take(rows, axis=0))
            of_input[rows] += of_layer
        return of_input


# Channels, kernel, stride of each layer (Mnih et al. 2015), for images of 36 pixels or more.
NATURE_CONV = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
# For smaller pictures, such as the 10x10 ones of MinAtar.
SMALL_CONV = ((16, 3, 1), (32, 3, 1))
NATURE_MIN_PIXELS = 36


def channels_last(images: Tensor) -> Tensor:
    """The same images [N, C, H, W], channels last in memory: a CPU takes 0.7 of the time."""
    return images.contiguous(memory_format=torch.channels_last)


def scaled(images: Tensor, highest: float) -> Tensor:
    """Images as float32, bytes in [0, 1]; ``highest`` is the highest byte."""
    if images.dtype == torch.uint8:
        return images.to(torch.float32).mul_(1.0 / highest)
    return images.to(torch.float32)


class ImageConv2d(nn.Conv2d):
    """A convolution of images [N, C, H, W], bytes in [0, 1].

    The weights are scaled rather than the images, which are a thousand times as many numbers.

    Attributes:
        highest: the highest byte.
    """

    highest: float

    def forward(self, images: Tensor) -> Tensor:
        """Images, bytes or numbers, -> [N, filters, H', W']."""
        weight = self.weight / self.highest if images.dtype == torch.uint8 else self.weight
        kind = images.device.type  # bfloat16 has all bytes, so they need not pass through float32
        autocasts = torch.is_autocast_enabled(kind)
        dtype = torch.get_autocast_dtype(kind) if autocasts else torch.float32
        return self._conv_forward(images.to(dtype), weight, self.bias)


class ConvEncoder(nn.Module):
    """Convolutions and one linear layer, all followed by ReLU: images to [N, output_size].

    Args:
        shape: of one image, channels first or last, or [height, width] without channels; or of a
            stack of images [stack, ...], whose channels follow one another.
        conv: (channels, kernel, stride) of each layer. None: ``NATURE_CONV``, or ``SMALL_CONV``
            for small images.
        output_size: width of the linear layer.
        init: a key of `INITS`.
        bfloat16: compute in this precision; images and features are float32 in any case.
        highest: the highest byte of images, which becomes 1.

    Raises:
        ConfigError: a layer's kernel is larger than what is left of the image.
    """

    def __init__(
        self,
        shape: Sequence[int],
        conv: Sequence[Sequence[int]] | None,
        output_size: int,
        init: str = "orthogonal",
        bfloat16: bool = False,
        highest: float = 255.0,
    ) -> None:
        super().__init__()
        self._bfloat16, self._highest = bfloat16, highest
        if len(shape) not in (2, 3, 4):
            message = f"convolutions need 2-D, 3-D or 4-D observations, not {tuple(shape)}"
            raise misfit("model.conv", message)
        self._shape = shape = (*shape, 1) if len(shape) == 2 else tuple(shape)
        image = shape[-3:]
        self._channels_first = channels_first(image)
        channels, height, width = image if self._channels_first else (image[2], *image[:2])
        channels *= prod(shape[:-3])
        if conv is None:
            conv = NATURE_CONV if min(height, width) >= NATURE_MIN_PIXELS else SMALL_CONV
        self.output_size = output_size
        gain = HIDDEN_GAINS[init]
        self.conv = nn.ModuleList()
        for i, (num_filters, kernel, stride) in enumerate(conv):
            if kernel > min(height, width):
                raise misfit(
                    "model.conv",
                    f"layer {i} has a {kernel}x{kernel} kernel, but only "
                    f"{height}x{width} pixels are left of the {tuple(shape)} image; "
                    "use fewer layers or smaller kernels and strides",
                )
            layer = (nn.Conv2d if i else ImageConv2d)(channels, num_filters, kernel, stride)
            if isinstance(layer, ImageConv2d):
                layer.highest = highest
            INITS[init](layer, gain)
            self.conv.append(layer)
            channels = num_filters
            height = (height - kernel) // stride + 1
            width = (width - kernel) // stride + 1
        num_features = prod((channels, height, width))
        self.fc = linear(num_features, output_size, gain, init)

    def forward(self, x: Tensor) -> Tensor:
        """Images [N, ...], bytes or numbers, -> [N, output_size]."""
        x = x.reshape(-1, *self._shape)
        x = (x if self._channels_first else x.movedim(-1, -3)).flatten(1, -3)
        x = channels_last(x) if self.conv else scaled(x, self._highest)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self._bfloat16):
            for layer in self.conv:
                x = torch.relu_(layer(x))
            if x.requires_grad:
                x.register_hook(channels_last)  # or the slope of ReLU would take ten times as long
            return torch.relu(self.fc(x.flatten(1))).float()
