"""Offloaded nets train as nets in memory do, to the bit."""
import numpy as np, pytest
import singanet
from singanet.layers import Dense
from singanet.loss import SquaredError
from singanet.optimizer import Adam

def net_of(seed=3, width=160, depth=4):
    layers=[Dense(f"fc{k}", width, **({"input_sample_shape": (width,)} if k == 0 else {})) for k in range(depth)]
    return singanet.FeedForwardNet(layers, loss=SquaredError(), seed=seed)

def test_bits(tmp_path):
    rng=np.random.default_rng(0); x=rng.normal(size=(4,160)).astype('f'); y=rng.normal(size=(4,160)).astype('f')
    a,b=net_of(),net_of()
    oa,ob=Adam(lr=0.01),Adam(lr=0.01)
    b.offload(tmp_path/"f", keep=800_000)
    for _ in range(4):
        ra=a.step(x,y,oa); rb=b.step(x,y,ob)
        assert ra==rb
    assert b.programs.shelf.peak<=800_000
    for p,q in zip(a.params(),b.params()):
        assert np.array_equal(p.value,q.value)
    sa,sb=oa.state_dict(),ob.state_dict()
    assert sa.keys()==sb.keys()
    for k in sa: assert np.array_equal(sa[k],sb[k])
    c=net_of(5); c.load(tmp_path/"f")
    assert all(np.array_equal(p.value,q.value) for p,q in zip(a.params(),c.params()))
    b.onload()
    for _ in range(2): assert a.step(x,y,oa)==b.step(x,y,ob)
