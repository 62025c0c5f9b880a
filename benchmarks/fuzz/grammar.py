"""What random expressions are made of, by kind.

    V  a vector of three        S  a vector of any length, none too     M  rows of three, of any number
    N  a number as a tensor     I  a whole number as a tensor           K  whole numbers as a vector, each below three
    i  a Python int             f  a Python float                       b  what an `if` can ask
    L  a list of vectors        R  what a program returns

``{V}`` in a template stands for another expression of that kind, ``{V'}`` for the same one as before it. Comparisons are with odd numbers, not with zero: a sum that is
zero but for rounding would send two correct runs different ways.
"""

from __future__ import annotations

from benchmarks.fuzz.grammar_of_floats import NUMBERS, ROWS, SEQUENCES, VECTORS

CONSTANTS = {
    "V": ["torch.ones(3)", "net.weight[0]", "torch.tensor([0.5, -1.0, 0.5])", "torch.zeros(3)"],
    "S": ["torch.arange(4.0)", "torch.tensor([0.3, 0.3, -0.2])", "torch.zeros(0)"],
    "M": ["torch.ones(2, 3)", "net.weight"],
    "N": ["torch.tensor(0.7)", "torch.tensor(0.0)", "net.scale"],
    "I": ["torch.tensor(1)", "torch.tensor(2)"],
    "K": ["torch.tensor([2, 0])", "torch.tensor([1])"],
    "i": ["1", "2", "n"],
    "f": ["0.5", "-1.25", "2.0"],
    "b": ["n > 1", "n % 2 == 0"],
    "L": ["[torch.ones(3), net.weight[2]]", "list(net.weight)"],
    "R": ["None", "n"],
}

WHOLE_NUMBERS = """
{V}.argmax()
{V}.argmin()
{V}.max(0).indices
({V} > 0.2).sum()
torch.tensor({i})
({I} + 1)
({I} * 2 % 3)
({I} // 2)
torch.tensor({S}.shape[0])
torch.cat([{V}, {S}]).argmax()
({S} > 0.1).count_nonzero()
{K}.sum()
{I}.clamp(0, 2)
{V}.topk(1).indices.squeeze()
torch.bincount({K}).sum()
"""

INDICES = """
{V}.argsort(stable=True)
{V}.topk(2).indices
({V} > 0.2).nonzero().flatten()
({V} > 0.2).long()
torch.tensor([{i} % 3, 0])
torch.arange({i} % 3)
torch.stack([{I} % 3, {I} % 3])
{K}.flip(0)
(2 - {K}.clamp(0, 2))
torch.randperm(3, generator=torch.Generator().manual_seed(1))
"""

INTS = """
n
({i} + 1)
({i} * 2)
int({I})
{I}.item()
int({V}.argmax())
len({S})
len({M})
{M}.size(0)
{V}.shape[0]
{S}.numel()
{S}.dim()
len({L})
len({S}.tolist())
int(bool({b}))
int({N} > 0.4)
max({i}, 1)
min({i}, 2)
sum({K}.tolist())
"""

FLOATS = """
0.5
1e-3
n / 2
{N}.item()
float({N})
{V}.tolist()[1]
{V}[0].item()
math.tanh({f})
({f} * 0.5)
float({V}.detach().numpy()[0])
"""

TRUTHS = """
{N} > 0.3
{N} < {N}
{V}.sum() > {f}
({V} > 0.1).any()
({V} < 1.7).all()
{V}[0] < {V}[1]
bool({N} > 0.25)
{N}.item() > 0.3
{i} > 1
{i} == {I}
{V}.argmax() == 0
{I} in (0, 2)
{S}.numel() == 0
{V}.requires_grad
{N}.requires_grad
{V}.is_leaf
torch.is_grad_enabled()
{V}.dtype == torch.float64
{N}.isnan()
{V}.isfinite().all()
torch.equal({V}, {V})
torch.allclose({V}, {V})
not {b}
({b}) and ({b})
({b}) or {i} > 2
{N} == {N}
net.training
{V}.grad_fn is None
"""

LISTS = """
[{V}, {V}]
list({M})
[v * 2 for v in {L}]
[v for v in {L} if v.sum() > 0.3]
list({M}.unbind(0))
list({M}.split(1)[0])
{L}[::-1]
sorted({L}, key=lambda v: v[0].item())
[helper(v, {i}) for v in {L}]
list(gates({V}))
list({V}.expand(3, 3).chunk(3)[0])
batch(lambda v: helper(v, 1))(list({M}))
batch(lambda v: v + {V})({L})
"""

RESULTS = """
{V}
{N}
{S}
{M}
{I}
{i}
{f}
{b}
{L}
({V}, {N})
({V}, {V})
[{V}, {i}]
[[{V}], ({S},)]
dict(a={V}, b={f})
dict(a=[{N}, None], b=({R},))
collections.OrderedDict(a={V}, b={N})
collections.defaultdict(list, a=[{V}])
collections.deque([{V}, {N}])
Pair({V}, {N})
Record({V}, [{N}])
{V}.shape
{S}.shape
{M}.size()
{V}.sort()
{V}.max(0)
{V}.tolist()
{V}.dtype
{V}.detach()
{V}.detach().numpy()
({V} > 0.1)
str({i})
repr({i} > 1)
f'{n}'
net.weight
net.linear.weight
net.table.weight[1]
(x, {V})
x
None
((v := {V}), v)
((v := {V}), v[0], v.detach())
[(v := {V}), v.add_(0)]
{i} if {b} else {V}
({V} if {b} else None, {N})
{V}.requires_grad
{V}.float()
{V}.to(torch.bool)
net.lstm({M})
torch.ones(2, requires_grad=True)
nn.Parameter(torch.ones(2))
{V}.device.type
{S}.sum().item()
[{I}, {K}]
range({i})
set([{i}, -1])
slice({i})
(True, 1, 1.0, 'one')
"""

TEMPLATES = {
    kind: lines.strip().splitlines()
    for kind, lines in {
        "V": VECTORS,
        "N": NUMBERS,
        "S": SEQUENCES,
        "M": ROWS,
        "I": WHOLE_NUMBERS,
        "K": INDICES,
        "i": INTS,
        "f": FLOATS,
        "b": TRUTHS,
        "L": LISTS,
        "R": RESULTS,
    }.items()
}
