"""How the architectures written here compute, at small sizes: against torch's own attention, numpy, and by thought."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

torch = pytest.importorskip("torch", reason="the families' suite needs torch")
pytest.importorskip("timm", reason="these architectures are of the family shared")

from torch import Tensor, nn  # noqa: E402
from torch.nn.functional import interpolate  # noqa: E402

from croma_bundle.encoders.architectures import conch, conch15, mettle, musk  # noqa: E402

pytestmark = pytest.mark.encoders

Doubles = npt.NDArray[np.float64]
WIDTH, CONTEXT, HEADS, TOKENS = 16, 24, 4, 10


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(7)
    with torch.inference_mode():
        yield


def randomised(module: nn.Module) -> nn.Module:
    for parameter in module.parameters():
        parameter.data.copy_(torch.randn(parameter.shape))
    return module.eval()


def doubles(tensor: Tensor) -> Doubles:
    return tensor.numpy().astype(np.float64)


def normed(rows: Doubles, layer: nn.LayerNorm) -> Doubles:
    spread = np.sqrt(rows.var(axis=-1, keepdims=True) + layer.eps)
    return (rows - rows.mean(axis=-1, keepdims=True)) / spread * doubles(layer.weight) + doubles(layer.bias)


def applied(rows: Doubles, layer: nn.Linear) -> Doubles:
    return rows @ doubles(layer.weight).T + (0 if layer.bias is None else doubles(layer.bias))


def softmax(logits: Doubles) -> Doubles:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def attended(query: Doubles, keys: Doubles, values: Doubles, heads: int) -> Doubles:
    """Attention, one head at a time, of (tokens, width)."""
    parts = [np.split(rows, heads, axis=-1) for rows in (query, keys, values)]
    each = [softmax(q @ k.T / math.sqrt(q.shape[-1])) @ v for q, k, v in zip(*parts, strict=True)]
    return np.concatenate(each, axis=-1)


def gelu(rows: Doubles) -> Doubles:
    return rows * (1 + np.vectorize(math.erf)(rows / math.sqrt(2))) / 2


def test_conch_pools_by_the_attention_of_its_normalised_query_to_the_normalised_tokens():
    pooler = randomised(conch.AttentionPooler(CONTEXT, WIDTH, HEADS))
    tokens = torch.randn(3, TOKENS, CONTEXT)
    attention = pooler.attn
    biases = np.split(doubles(attention.in_proj_bias), 3)
    weights = [doubles(getattr(attention, f"{side}_proj_weight")) for side in "qkv"]
    query = normed(doubles(pooler.query), pooler.ln_q) @ weights[0].T + biases[0]
    for pooled, image in zip(doubles(pooler(tokens)), doubles(tokens), strict=True):
        context = normed(image, pooler.ln_k)
        keys, values = (context @ weight.T + bias for weight, bias in zip(weights[1:], biases[1:], strict=True))
        wanted = applied(attended(query, keys, values, HEADS), attention.out_proj)[0]
        np.testing.assert_allclose(pooled, wanted, rtol=1e-4, atol=1e-4)


def test_the_pooler_of_conch15_is_torch_s_attention_without_biases():
    pooler = randomised(conch15.BareAttentionPooler(CONTEXT, WIDTH, HEADS))
    torchs = nn.MultiheadAttention(WIDTH, HEADS, bias=False, kdim=CONTEXT, vdim=CONTEXT, batch_first=True)
    torchs.q_proj_weight.data = pooler.to_q.weight
    torchs.k_proj_weight.data, torchs.v_proj_weight.data = pooler.to_kv.weight.chunk(2)
    torchs.out_proj.weight.data = pooler.to_out.weight
    tokens = torch.randn(3, TOKENS, CONTEXT)
    keys = pooler.ln_k(tokens)
    wanted = torchs(pooler.ln_q(pooler.query).expand(3, 1, WIDTH), keys, keys)[0][:, 0]
    torch.testing.assert_close(pooler(tokens), wanted, rtol=1e-4, atol=1e-4)


def kernel(distance: float) -> float:
    """Keys' cubic kernel with a = -3/4."""
    x, a = abs(distance), -0.75
    if x <= 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a if x < 2 else 0.0


def stretching(own: int, side: int) -> Doubles:
    """(side, own): what each old position adds to each new one; beyond the edge the last one stands."""
    weights = np.zeros((side, own))
    for new in range(side):
        place = (new + 0.5) * own / (side + 0.1) - 0.5
        for old in range(math.floor(place) - 1, math.floor(place) + 3):
            weights[new, min(max(old, 0), own - 1)] += kernel(place - old)
    return weights


@pytest.mark.parametrize("side", [8, 6, 3])
def test_conch15_stretches_its_positions_bicubically_and_leaves_the_class_token_s_alone(side):
    positions = torch.randn(1, 1 + 4 * 4, 5)
    found = doubles(conch15.stretched(positions, side))
    weights = stretching(4, side)
    grid = np.einsum("ai,bj,ijc->abc", weights, weights, doubles(positions)[0, 1:].reshape(4, 4, 5))
    np.testing.assert_allclose(found[0, 1:].reshape(side, side, 5), grid, atol=1e-5)
    np.testing.assert_array_equal(found[0, 0], doubles(positions)[0, 0])


def test_conch15_at_its_own_side_uses_its_positions_as_they_are():
    positions = torch.randn(1, 1 + 4 * 4, 5)
    assert conch15.stretched(positions, 4) is positions


@pytest.mark.parametrize("side", [32, 64])
def test_conch15_takes_any_square_of_whole_patches(side):
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": CONTEXT, "depth": 1, "num_heads": 2}
    tower = randomised(conch15.conch15(WIDTH, pooler_heads=HEADS, init_values=1.0, **sizes))
    images = torch.randn(2, 3, side, side)
    assert tower(images).shape == (2, WIDTH)
    assert tower.trunk.forward_features(images).shape == (2, 1 + (side // 8) ** 2, CONTEXT)


def tiny_musk() -> nn.Module:
    return randomised(musk.Musk(img_size=32, patch_size=8, width=WIDTH, hidden=20, heads=HEADS, layers=2))


def test_musk_attends_as_torch_does_and_normalises_before_the_last_projection():
    attention = randomised(musk.Attention(WIDTH, HEADS))
    torchs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    inputs = (attention.q_proj, attention.k_proj, attention.v_proj)
    torchs.in_proj_weight.data = torch.cat([layer.weight for layer in inputs])
    torchs.in_proj_bias.data = torch.cat([layer.bias for layer in inputs])
    torchs.out_proj.weight.data, torchs.out_proj.bias.data = torch.eye(WIDTH), torch.zeros(WIDTH)
    tokens = torch.randn(3, TOKENS, WIDTH)
    inner = torchs(tokens, tokens, tokens)[0]
    wanted = applied(normed(doubles(inner), attention.inner_attn_ln), attention.out_proj)
    np.testing.assert_allclose(doubles(attention(tokens)), wanted, rtol=1e-4, atol=1e-4)


def test_the_feed_forward_network_of_musk_normalises_between_its_layers():
    network = randomised(musk.FeedForward(WIDTH, 20))
    tokens = torch.randn(2, TOKENS, WIDTH)
    inner = normed(gelu(applied(doubles(tokens), network.fc1)), network.ffn_layernorm)
    np.testing.assert_allclose(doubles(network(tokens)), applied(inner, network.fc2), rtol=1e-4, atol=1e-4)


def test_a_layer_of_musk_adds_to_its_tokens_and_normalises_before():
    layer = randomised(musk.Layer(WIDTH, 20, HEADS))
    tokens = torch.randn(2, TOKENS, WIDTH)
    between = tokens + layer.self_attn(layer.self_attn_layer_norm(tokens))
    torch.testing.assert_close(layer(tokens), between + layer.ffn(layer.final_layer_norm(between)))


def test_musk_s_positions_start_at_the_third_row():
    module, images = tiny_musk(), torch.randn(1, 3, 32, 32)
    before = module(images)
    positions = module.encoder.embed_positions.weight
    assert positions.shape == (2 + 1 + 16, WIDTH)
    positions.data[:2] = 1e6
    torch.testing.assert_close(module(images), before, rtol=0, atol=0)
    positions.data[2] += 1
    assert not torch.allclose(module(images)[:, 0], before[:, 0])


def test_without_layers_musk_s_tokens_are_the_class_token_and_patches_with_positions_normalised():
    module = randomised(musk.Musk(img_size=32, patch_size=8, width=WIDTH, hidden=20, heads=HEADS, layers=0))
    image = torch.randn(1, 3, 32, 32)
    tiles = doubles(image)[0].reshape(3, 4, 8, 4, 8).transpose(1, 3, 0, 2, 4).reshape(16, -1)
    proj, embedding = module.vision_embed.proj, module.encoder
    patches = tiles @ doubles(proj.weight).reshape(WIDTH, -1).T + doubles(proj.bias)
    tokens = np.concatenate([doubles(module.vision_embed.cls_token)[0], patches])
    wanted = normed(tokens + doubles(embedding.embed_positions.weight)[2:], embedding.layer_norm)
    np.testing.assert_allclose(doubles(module(image))[0], wanted, rtol=1e-3, atol=1e-3)


def test_the_four_quarters_are_cut_row_by_row():
    image = torch.arange(16).reshape(1, 1, 4, 4)
    assert [quarter.flatten().tolist() for quarter in musk.quartered(image)] == [
        [0, 1, 4, 5],
        [2, 3, 6, 7],
        [8, 9, 12, 13],
        [10, 11, 14, 15],
    ]


class CornerAndMean(nn.Module):
    """A network that tells where it looked: its class token is the image's first pixel and its mean."""

    def forward(self, images: Tensor) -> Tensor:
        token = torch.stack([images[:, 0, 0, 0], images.mean(dim=(1, 2, 3))], dim=1)
        return torch.stack([token, torch.full_like(token, torch.nan)], dim=1)


def test_at_two_scales_the_class_token_stands_beside_the_mean_of_its_quarters_twice_as_large():
    images = torch.randn(3, 3, 8, 8)
    large = interpolate(images, size=16, mode="bicubic")
    found = musk.at_two_scales(CornerAndMean(), images)
    corners = torch.stack([large[:, 0, row, column] for row in (0, 8) for column in (0, 8)]).mean(dim=0)
    wanted = [images[:, 0, 0, 0], images.mean(dim=(1, 2, 3)), corners, large.mean(dim=(1, 2, 3))]
    torch.testing.assert_close(found, torch.stack(wanted, dim=1))


def test_at_two_scales_an_image_s_vector_does_not_depend_on_its_neighbours():
    module, images = tiny_musk(), torch.randn(3, 3, 32, 32)
    alone = torch.cat([musk.at_two_scales(module, image[None]) for image in images])
    assert alone.shape == (3, 2 * WIDTH)
    torch.testing.assert_close(musk.at_two_scales(module, images), alone, rtol=1e-4, atol=1e-4)


def test_the_head_of_mettle_follows_its_formula():
    head = randomised(mettle.RefiningHead(WIDTH))
    embeddings = torch.randn(5, WIDTH)
    for found, e in zip(doubles(head(embeddings)), doubles(embeddings), strict=True):
        mix, shift = (applied(gelu(applied(e, layers[0])), layers[2]) for layers in (head.mix, head.shift))
        atoms = zip(mix, doubles(head.P), doubles(head.Q), strict=True)
        wanted = e + sum(weight * q @ (p.T @ e) for weight, p, q in atoms) + shift
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-2)


class Backbone(nn.Module):
    def forward_features(self, images: Tensor) -> Tensor:
        return images.flatten(2).transpose(1, 2)


def test_mettle_refines_the_class_token_alone():
    module = mettle.Mettle(Backbone(), 3)
    randomised(module.head)
    images = torch.randn(2, 3, 4, 4)
    tokens, plain = module(images), images.flatten(2).transpose(1, 2)
    torch.testing.assert_close(tokens[:, 1:], plain[:, 1:], rtol=0, atol=0)
    torch.testing.assert_close(tokens[:, 0], module.head(plain[:, 0]))
    assert not torch.allclose(tokens[:, 0], plain[:, 0])
