import pytest

from covprop.errors import InvalidInput
from covprop.explore.parameters import Real, Whole, from_body, from_query

KINDS = {"index": Whole(0, 9), "sigma": Real(4.0), "layer": Whole(optional=True)}


def test_good_parameters_are_read() -> None:
    expected = {"index": 3, "sigma": 0.25, "layer": None}
    assert from_query("index=3&sigma=0.25", KINDS) == expected
    assert from_body(b'{"index": 3, "sigma": 0.25}', KINDS) == expected
    assert from_query("", {}) == {}


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("sigma=0.25", "index is missing"),
        ("index=3&index=4&sigma=1", "given twice"),
        ("index=3&sigma=1&path=/etc/passwd", "no parameter 'path'"),
        ("index=10&sigma=1", "between 0 and 9"),
        ("index=-1&sigma=1", "between 0 and 9"),
        ("index=3.0&sigma=1", "whole number"),
        ("index=1_0&sigma=1", "whole number"),
        ("index=٣&sigma=1", "whole number"),
        ("index=&sigma=1", "whole number"),
        ("index=99999999999999999999&sigma=1", "whole number"),
        ("index=3&sigma=0", "above 0"),
        ("index=3&sigma=nan", "above 0"),
        ("index=3&sigma=inf", "above 0"),
        ("index=3&sigma=4.1", "up to 4"),
        ("index=3&sigma=x", "above 0"),
        ("index", "name=value"),
    ],
)
def test_slips_in_an_address_are_one_sentence(query: str, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence) as caught:
        from_query(query, KINDS)
    assert str(caught.value).count("\n") == 0


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"index": true, "sigma": 1}',
        b'{"index": [3], "sigma": 1}',
        b'{"index": 3, "sigma": {}}',
        b'{"index": 3, "sigma": NaN}',
        b'{"index": 3.5, "sigma": 1}',
    ],
)
def test_slips_in_a_body_are_refused(body: bytes) -> None:
    with pytest.raises(InvalidInput):
        from_body(body, KINDS)
