"""Numbers of ggml's blocks one by one, as its dequantize_row functions in C compute them."""

import struct


def half(raw, at):
    return struct.unpack_from("<e", raw, at)[0]


def signed(byte):
    return byte - 256 if byte > 127 else byte


def four_bits(raw, at):
    """32 numbers of 16 bytes: their low halves, then their high ones."""
    return [byte & 15 for byte in raw[at : at + 16]] + [byte >> 4 for byte in raw[at : at + 16]]


def five_bits(raw, at):
    """`four_bits` of what follows four bytes, whose bit k is the fifth of number k."""
    high = struct.unpack_from("<I", raw, at)[0]
    return [q | (high >> k & 1) << 4 for k, q in enumerate(four_bits(raw, at + 4))]


def scale_and_minimum(k, q):
    """``get_scale_min_k4``: those of sub-block k, six bits each."""
    if k < 4:
        return q[k] & 63, q[k + 4] & 63
    return q[k + 4] & 15 | q[k - 4] >> 6 << 4, q[k + 4] >> 4 | q[k] >> 6 << 4


def of_sub_blocks(raw, quants, fifth):
    made = []
    for k in range(8):
        scale, least = scale_and_minimum(k, raw[4:16])
        for i in range(32):
            byte = raw[quants + k // 2 * 32 + i]
            q = (byte >> 4 if k % 2 else byte & 15) + (16 if fifth and raw[16 + i] >> k & 1 else 0)
            made.append(half(raw, 0) * scale * q - half(raw, 2) * least)
    return made


def q6_k(raw):
    made = [0.0] * 256
    for part in range(2):
        low, high, scales = raw[part * 64 :], raw[128 + part * 32 :], raw[192 + part * 8 :]
        for i in range(32):
            for k in range(4):
                byte = low[i + 32 * (k % 2)]
                q = (byte >> 4 if k > 1 else byte & 15) | (high[i] >> 2 * k & 3) << 4
                scale = signed(scales[i // 16 + 2 * k])
                made[part * 128 + k * 32 + i] = half(raw, 208) * scale * (q - 32)
    return made


NUMBERS = {
    "Q4_0": lambda raw: [half(raw, 0) * (q - 8) for q in four_bits(raw, 2)],
    "Q4_1": lambda raw: [half(raw, 0) * q + half(raw, 2) for q in four_bits(raw, 4)],
    "Q5_0": lambda raw: [half(raw, 0) * (q - 16) for q in five_bits(raw, 2)],
    "Q5_1": lambda raw: [half(raw, 0) * q + half(raw, 2) for q in five_bits(raw, 4)],
    "Q8_0": lambda raw: [half(raw, 0) * signed(byte) for byte in raw[2:34]],
    "Q4_K": lambda raw: of_sub_blocks(raw, 16, fifth=False),
    "Q5_K": lambda raw: of_sub_blocks(raw, 48, fifth=True),
    "Q6_K": q6_k,
    "BF16": lambda raw: [struct.unpack("<f", b"\0\0" + raw)[0]],
}
"""What a block of each kind says, of its bytes."""
HALVES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
"""Where its numbers of float16 begin, if not at 0 alone."""
