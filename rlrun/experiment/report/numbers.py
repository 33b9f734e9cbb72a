"""Numbers as text, for the console, tables, axes and pages.

Owns the number of digits, and the units of bytes and of time. It must not know what the numbers
mean.
"""


def number(value: float) -> str:
    """A number as text: 300,000 or 475 or 412.53 or 0.00012."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.2f}" if abs(value) >= 1 else f"{value:.4g}"


def two_decimals(value: float | None, missing: str = "-") -> str:
    """A number of at most two decimals, such as a return; ``missing`` for None."""
    return missing if value is None else number(round(value, 2))


def rounded(value: float | None, missing: str = "") -> str:
    """A number of four digits for a table; ``missing`` for None."""
    text = missing if value is None else number(float(f"{value:.4g}"))
    return text.rstrip("0").rstrip(".") if "." in text else text


def short(value: float) -> str:
    """A number on an axis: 40k, 1.5M, 0.25."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.4g}{letter}"
    return f"{value:.4g}"


def size_text(num_bytes: float) -> str:
    """Bytes as 950 B, 12 kB or 1.2 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 999.5 or unit == "GB":
            break
        num_bytes /= 1000
    digits = 1 if num_bytes < 9.95 and unit != "B" else 0
    return f"{num_bytes:.{digits}f} {unit}"


def clock_time(seconds: float) -> str:
    """Seconds as h:mm:ss."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
