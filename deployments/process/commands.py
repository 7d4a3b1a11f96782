"""x"""


def demo() -> None:
    """demo"""


def run() -> None:
    """run"""
