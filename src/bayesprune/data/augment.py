"""Random crops and mirror images of a whole batch at once, on whatever device it lies."""

import torch
from torch import Tensor

PADDING = 4


def crop_and_flip(images: Tensor, offsets: Tensor, flips: Tensor, padding: int = PADDING) -> Tensor:
    """Shift each image within a black border, and mirror it where asked.

    Image i, padded with ``padding`` zeros on each side, is cut to its own size again from row ``offsets[i, 0]`` and column
    ``offsets[i, 1]`` on, then mirrored left to right where ``flips[i]``. Zero has to mean black: apply this before pixels are normalised.

    Args:
        images: of shape (N, C, H, W).
        offsets: whole numbers of shape (N, 2), each from 0 to twice the padding.
        flips: booleans of shape (N,).
        padding: width of the border.
    """
    count, channels, height, width = images.shape
    row = torch.arange(height, device=images.device)
    column = torch.arange(width, device=images.device)
    rows = row + (offsets[:, :1] - padding)
    columns = torch.where(flips[:, None], column.flip(0), column) + (offsets[:, 1:] - padding)
    border = ((rows < 0) | (rows >= height))[:, :, None] | ((columns < 0) | (columns >= width))[:, None, :]
    source = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None, :]
    source = source.reshape(count, 1, -1).expand(-1, channels, -1)
    cropped = images.reshape(count, channels, -1).gather(2, source).reshape(images.shape)
    return cropped.masked_fill(border[:, None], 0)
