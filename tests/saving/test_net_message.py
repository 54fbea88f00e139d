"""Descriptions of nets as protobuf messages: nothing is lost, nothing else is taken."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.errors import ConfigError
from singanet.saving.nets import net_from_proto, net_to_proto
from tests.layer_catalogue import net_of

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: st.lists(inner, max_size=3)
    | st.builds(lambda d: {"dict": d}, st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=10,
)  # fmt: skip


@given(VALUES, st.text(max_size=6))
def test_any_argument_comes_back_with_its_type(value, name):
    config = net_of("Dense").to_config()
    config["layers"][1]["arguments"] = {name: value}
    found = net_from_proto(net_to_proto(config).SerializeToString())
    # As text, since True == 1 == 1.0 in Python.
    assert json.dumps(found, sort_keys=True) == json.dumps(config, sort_keys=True)


@pytest.mark.parametrize("version", [3, 7, 0])
def test_another_version_is_refused_with_both(version):
    config = net_of("Dense").to_config()
    message = net_to_proto(config)
    message.version = version
    with pytest.raises(ConfigError, match=rf"expected version 1 to 2; received version {version}"):
        net_from_proto(message)
    with pytest.raises(ConfigError, match=rf"expected version 1 to 2; received version {version}"):
        net_to_proto({**config, "version": version})
    message.ClearField("version")
    with pytest.raises(ConfigError, match="received version None"):
        net_from_proto(message)


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.update(surprise=1),
        lambda c: c["layers"][1].update(surprise=1),
        lambda c: c["layers"][1].pop("name"),
        *(lambda c, number=number: c["layers"][1]["arguments"].update(num_output=number)
          for number in (2**64, {"odd": 1}, {1, 2}, "\ud800")),
        lambda c: c["layers"][1].update(sources=[["in0", -1]]),
        lambda c: c["layers"][1].update(sources=3),
        lambda c: c.update(layers=None),
        lambda c: c.update(loss="mse"),
        lambda c: c.update(frozen=[1]),
        lambda c: c.update(most_steps=-1),
    ],
)  # fmt: skip
def test_what_the_schema_has_no_place_for_is_refused(change):
    config = net_of("Dense").to_config()
    change(config)
    with pytest.raises(ConfigError):
        net_to_proto(config)


def test_what_is_no_message_is_refused():
    for bad in (b"\xff\xff\xff", "text", None, {"format": "singanet net"}):
        with pytest.raises(ConfigError):
            net_from_proto(bad)


@given(st.data())
def test_damaged_messages_raise_only_our_errors(data):
    raw = bytearray(net_to_proto(net_of("Dense").to_config()).SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        net_from_proto(bytes(raw))
    except ConfigError as error:
        assert len(str(error)) < 1000  # noqa: PT017 - one of our errors will do
