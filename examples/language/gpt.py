"""A small causal transformer: at each place of a text the logits of the next token."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SPREAD = 0.02  # of the initial weights, as of GPT-2


class GPT(nn.Module):
    """A decoder as GPT-2's (Radford et al., 2019), with layer normalization before each part.

    Maps tokens int64 [n, t] to logits [n, t, vocabulary]. t is at most `context`.
    """

    def __init__(
        self,
        vocabulary: int,
        context: int,
        width: int = 64,
        heads: int = 4,
        depth: int = 2,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=SPREAD)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        features = self.blocks(self.tokens(tokens) + self.places(places))
        logits: Tensor = self.head(self.norm(features))
        return logits


class Block(nn.Module):
    """Causal self-attention, then a network for each place; each adds to what it gets."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.rate = heads, dropout
        self.norm, self.norm_of_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixing, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, features: Tensor) -> Tensor:
        shape = (*features.shape[:2], self.heads, -1)
        parts = self.mixing(self.norm(features)).chunk(3, dim=2)
        query, key, value = (part.view(shape).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, dropout_p=self.rate if self.training else 0.0
        )
        features = features + self.dropout(self.out(mixed.transpose(1, 2).flatten(2)))
        added: Tensor = features + self.dropout(self.mlp(self.norm_of_mlp(features)))
        return added
