"""Expressions that give tensors of floats: templates as in `grammar`."""

from __future__ import annotations

VECTORS = """
torch.tanh({V})
{V}.sigmoid()
({V} + {V})
({V} - {V} * {f})
({V} * {N})
({V} * {i})
({N} / ({V}.abs() + 1))
({V} ** 2)
({V} / {V})
(1 - {V})
(-{V})
net.linear({V})
net.norm({V})
net.seq({V})
net.cell({V}, {V})
net.lstm_cell({V}, ({V}, {V}))[0]
net.lstm_cell({V})[1]
net.drop({V})
net.batch_norm({V}.unsqueeze(0)).squeeze(0)
net({V})
net.table({I} % 4)
net.table(torch.tensor({i} % 4))
net.table.weight[{i} % 4]
net.linear.weight[{i} % 3]
net.linear.bias
{M}.sum(0)
{M}.mean(0)
{M}.amax(0)
torch.cat([{M}, net.weight])[-1]
{M}[-1]
{M}[{I} % len({M'})]
torch.where({V} > {V}, {V}, {V})
torch.where({V} > {f}, {V}, 0.0)
torch.where({V} > 0.1, {V}.log(), {V})
{V}.masked_fill({V} > 0.3, {f})
{V}.clamp(min=0.1)
{V}.clamp({f}, 3.0)
{V}.sort().values
{V}.sort(descending=True)[0]
{V}.topk(3).values
{V}.flip(0)
{V}.roll(1)
{V}.cumsum(0)
{V}.cummax(0).values
{V}[{V}.argsort(stable=True)]
{V}[{V}.sort(stable=True).indices]
{V}[torch.tensor([2, 0, 0])]
{V}[[{i} % 3, 0, 1]]
{V}.gather(0, {V}.argsort(stable=True))
{V}.index_select(0, torch.tensor([1, 1, {i} % 3]))
{V}.scatter(0, torch.tensor([{i} % 3]), {f})
{V}.index_add(0, torch.tensor([0, 0]), {V}[:2])
torch.stack([{N}, {N}, {N}])
torch.cat([{V}[:1], {V}[1:]])
torch.cat([{V}, {S}])[:3]
{V}.float().double()
({V}.float() + 1).double()
{V}.to(torch.float64)
{V}.detach()
{V}.detach().clone()
{V}.clone()
{V}.softmax(0)
{V}.log_softmax(-1)
F.relu({V})
F.leaky_relu({V}, {f})
F.gelu({V})
F.dropout({V}, 0.5, False)
F.normalize({V}, dim=0)
F.layer_norm({V}, (3,))
F.linear({V}, net.weight, {V})
F.pad({S}, (0, 3))[:3]
torch.maximum({V}, {V})
torch.min({V}, {V})
({V} @ net.weight)
(net.weight @ {V})
torch.mv(net.weight, {V})
net.weight[{i} % 3]
(net.scale * {V})
{V}.square().sqrt()
{V}.abs().sqrt()
{V}.log()
{V}.exp()
torch.nan_to_num({V})
Double.apply({V})
Clipped.apply({V}, {f})
Scaled.apply({V}, net.scale)
({V}.unsqueeze(1) + net.weight).t().tanh()[0]
helper({V}, {i})
helper(v=x_as_vector(x), k={i})
merge({V}, {V})
gates({V})[0]
{V}.expand(2, 3)[1]
{V}.unsqueeze(0).repeat(2, 1).sum(0)
{V}.view(3, 1).squeeze(1)
{V}.reshape(1, 3)[0]
torch.einsum('i,ij->j', {V}, net.weight)
torch.outer({V}, {V}).diagonal()
torch.lerp({V}, {V}, {f})
torch.addcmul({V}, {V}, {V}, value={f})
{V}.where({V} > 0.2, {V} ** 2)
{V}.new_zeros(3)
torch.zeros_like({V})
torch.full((3,), {f})
torch.tensor([{f}, {f}, {f}])
torch.tensor({V}.tolist())
({V} > {f}).double()
(({V} > 0.1) & ({V} < 2.0)).to({V}.dtype)
(({V} > 0.1).long() * {V})
sum([{V}, {V}])
sum({L})
({L} or [{V}])[-1]
{L}[{i} % len({L'})]
max({V}, {V}, key=lambda v: float(v.sum()))
batch(x_as_vector)([x])[0]
sum(batch(helper)([{V}, {V}], [1, {i}]))
batch(lambda v: v * {N})([{V}])[0]
torch.func.vmap(lambda e: e * 2)({V})
"""

NUMBERS = """
{V}.sum()
{V}.sum(dtype=torch.float32).double()
{S}.sum()
{M}.sum()
{V}[{i} % 3]
{V}[{I} % 3]
{V}[-1]
{V}.max()
{V}.min(0).values
{V}.median()
{V}.median(0)[0]
{V}.norm()
{V}.std()
{V}.var(unbiased=False)
{V}.prod()
{V}.logsumexp(0)
{V}.mean()
{S}.mean()
torch.cat([{S}, {V}]).max()
{S}.prod()
({V} @ {V})
torch.dot({V}, {V})
({N} * {N})
({N} + {f})
({f} - {N})
({N} / {N})
({i} * {N})
{N}.exp()
{N}.abs().sqrt()
{N}.detach()
torch.tensor({f})
torch.tensor({N}.item())
F.mse_loss({V}, {V})
F.cross_entropy({V}, {I} % 3)
F.nll_loss({V}.log_softmax(0), torch.tensor({i} % 3))
F.binary_cross_entropy_with_logits({V}, torch.ones(3))
F.cosine_similarity({V}, {V}, dim=0)
sum(v.sum() for v in {L})
sum({V})
max({N}, {N})
max({V})
torch.linalg.norm({M})
torch.logsumexp({M}, (0, 1))
torch.det(net.weight + torch.outer({V}, {V}))
net.scale
{V}.max(0)[0]
"""

SEQUENCES = """
{S}.tanh()
({S} * {N})
({S} + {f})
{S}[1:]
{S}[:{i}]
{S}[::2]
{S}[{S'} > 0.2]
{S}[torch.nonzero({S'} > 0.1).squeeze(1)]
torch.masked_select({S}, {S'} < 0.6)
torch.cat([{S}, {V}])
torch.cat([{S}, {S}])
{M}[:, 0]
{M}.sum(1)
({M} @ {V})
{M}.max(1).values
{M}.flatten()
{S}.softmax(0)
{S}.cumsum(0)
{S}.sort().values
{S}.sort(dim=0, descending=True, stable=True).values
{S}[{S'}.argsort(stable=True)]
{S}.flip(0)
{S}.unique()
{S}.clamp(max=0.4)
{S}.masked_fill({S'} > 0.2, {f})
torch.where({S} > 0.2, {S'}, {N})
{S}.view(-1, 1)[:, 0]
torch.stack([{N}, {N}])
torch.stack([{N}] + [v.sum() for v in {L}])
(torch.arange({i}) * {N})
(torch.linspace(0, 1, 2) * {N})
{S}.repeat(2)
{S}.diff()
{S}.detach()
{V}[{K}]
{V}[{V} > {f}]
{V}.topk(2).values
torch.tensor({S}.tolist())
"""

ROWS = """
{M}.tanh()
({M} * {V})
({M} + {N})
({M} - {M'}.mean(0))
({M} @ net.weight)
net.linear({M})
net.norm({M})
net.seq({M})
net.batch_norm({M})
net.lstm({M})[0]
net.gru({M})[0][:, :3]
torch.stack([{V}, {V}])
torch.stack([{V}, *{L}])
torch.stack([{V}] + [helper(v, 1) for v in {M}])
torch.cat([{M}, {V}.unsqueeze(0)])
torch.cat([{M}, {M}])
{M}[1:]
{M}[:{i}]
{M}.flip(0)
{M}[{M'}[:, 0] > 0.1]
{M}[{M'}[:, 1].argsort(stable=True)]
(({M} @ {M'}.t()).softmax(-1) @ {M'})
net.table({K})
net.weight[{K}]
{M}.softmax(0)
{M}.cumsum(0)
{M}.sort(1).values
{M}.t().contiguous().t()
{V}.expand(2, 3)
({S}.unsqueeze(1) * {V})
F.dropout({M}, 0.0)
torch.tril({M})
torch.zeros({i}, 3)
"""
