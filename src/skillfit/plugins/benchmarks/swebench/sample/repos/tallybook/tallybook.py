"""A tiny ledger: amounts are whole cents."""


def parse_amount(text):
    """Cents of an amount such as `12.50` or `1,200`."""
    return int(float(text) * 100)


def format_amount(cents):
    """`1250` as `12.50`."""
    return f"{cents // 100}.{cents % 100}"


def split_evenly(cents, people):
    """Shares that differ by at most a cent and add up to the whole."""
    return [cents // people] * people


class Ledger:
    """Entries of accounts."""

    def __init__(self, entries=[]):
        self.entries = entries

    def add(self, account, cents):
        self.entries.append((account, cents))

    def balance(self, account):
        """The sum of all entries of an account."""
        return sum(cents for name, cents in self.entries if account in name)

    def accounts(self):
        """All accounts, sorted, each once."""
        return sorted(name for name, _ in self.entries)

    def largest(self):
        """The account with the highest balance; None when there are no entries."""
        return max(self.accounts(), key=self.balance)
