"""How far apart two colours look, to whom: Machado et al. (2009) simulation and CIEDE2000."""

from __future__ import annotations

import numpy as np

# Machado, Oliveira & Fernandes 2009, "A Physiologically-based Model for Simulation of Color Vision
# Deficiency", table 1, severity 1.0; applied to linear RGB.
VISIONS = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}

# Linear sRGB to CIE XYZ (D65).
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)


def linear(colour: str) -> np.ndarray:
    """Linear RGB (3,) of ``#rrggbb``."""
    c = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def contrast(a: str, b: str) -> float:
    """WCAG 2.1 contrast ratio."""
    low, high = sorted(float(linear(c) @ TO_XYZ[1]) for c in (a, b))
    return (high + 0.05) / (low + 0.05)


def lab(colour: str, vision: str) -> np.ndarray:
    """CIE L*a*b* (3,) of a colour as someone with that vision sees it."""
    xyz = TO_XYZ @ np.clip(VISIONS[vision] @ linear(colour), 0, 1) / np.array([0.95047, 1.0, 1.08883])
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def difference(a: np.ndarray, b: np.ndarray) -> float:
    """CIEDE2000 (Sharma, Wu & Dalal 2005) between two L*a*b* colours."""
    mean_chroma = (np.hypot(a[1], a[2]) + np.hypot(b[1], b[2])) / 2
    g = 0.5 * (1 - np.sqrt(mean_chroma**7 / (mean_chroma**7 + 25.0**7)))
    a1, a2 = a[1] * (1 + g), b[1] * (1 + g)
    c1, c2 = np.hypot(a1, a[2]), np.hypot(a2, b[2])
    h1, h2 = np.degrees(np.arctan2(a[2], a1)) % 360, np.degrees(np.arctan2(b[2], a2)) % 360
    turn = (h2 - h1 + 180) % 360 - 180
    d_hue = 2 * np.sqrt(c1 * c2) * np.sin(np.radians(turn / 2))
    lightness, chroma = (a[0] + b[0]) / 2, (c1 + c2) / 2
    hue = (h1 + turn / 2) % 360
    t = (
        1
        - 0.17 * np.cos(np.radians(hue - 30))
        + 0.24 * np.cos(np.radians(2 * hue))
        + 0.32 * np.cos(np.radians(3 * hue + 6))
        - 0.20 * np.cos(np.radians(4 * hue - 63))
    )
    s_l = 1 + 0.015 * (lightness - 50) ** 2 / np.sqrt(20 + (lightness - 50) ** 2)
    x, y, z = (b[0] - a[0]) / s_l, (c2 - c1) / (1 + 0.045 * chroma), d_hue / (1 + 0.015 * chroma * t)
    bend = np.sin(np.radians(60 * np.exp(-(((hue - 275) / 25) ** 2))))
    rotation = -2 * np.sqrt(chroma**7 / (chroma**7 + 25.0**7)) * bend
    return float(np.sqrt(x * x + y * y + z * z + rotation * y * z))
