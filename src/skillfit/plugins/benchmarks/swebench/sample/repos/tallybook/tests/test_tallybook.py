from tallybook import Ledger, format_amount, parse_amount, split_evenly


def test_parse_whole_amounts():
    assert parse_amount("12") == 1200


def test_format_amount():
    assert format_amount(1250) == "12.50"


def test_split_evenly_without_rest():
    assert split_evenly(900, 3) == [300, 300, 300]


def test_balance():
    ledger = Ledger([])
    ledger.add("food", 500)
    ledger.add("rent", 900)
    assert ledger.balance("food") == 500
    assert ledger.accounts() == ["food", "rent"]
    assert ledger.largest() == "rent"
